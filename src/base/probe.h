// Static probes (USDT) for bpftrace, perf and SystemTap: `bpftrace -l 'usdt:.../libvma.so:*'` lists them, docs/STATS.md tells
// what each one's arguments are. One costs a no-op instruction and a note in the file, and is an empty statement where
// <sys/sdt.h> (package systemtap-sdt-dev) was missing when the library was built. Arguments: integers and pointers, evaluated
// in any case, so cheap ones.
#pragma once

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define VMA_PROBE2(name, a, b) DTRACE_PROBE2(vma, name, a, b)
#define VMA_PROBE3(name, a, b, c) DTRACE_PROBE3(vma, name, a, b, c)
#define VMA_PROBE4(name, a, b, c, d) DTRACE_PROBE4(vma, name, a, b, c, d)
#else
#define VMA_PROBE2(name, a, b) ((void)(a), (void)(b))
#define VMA_PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#define VMA_PROBE4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#endif
