// The C library's own functions behind our hooks, resolved with dlsym(RTLD_NEXT), and the start-up ladder.
//
// Stage 0  nothing is resolved: each pointer holds an "early" function that resolves the table and goes on. If that is what
//          this very thread is doing (dlsym allocates, the allocator opens a file) it makes a raw system call instead.
// Stage 1  the table is filled: by the first hook or by the constructor, whichever comes first. Every thread that finds it
//          empty fills it itself with the same values: nobody waits, because dlsym takes the loader's lock and a constructor
//          run by dlopen already holds it.
// Stage 2  configuration, at the first AF_INET socket: sock::start().
#pragma once

#include <aio.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

namespace vma {

struct Libc {
#define HOOK(result, name, parameters, arguments, early) result(*name) parameters;
#define VARIADIC(result, name, parameters) result(*name) parameters;
#define BUILT(result, name, parameters)
#define ALIAS(name, row)
#include "intercept/hooks.def"
#undef HOOK
#undef VARIADIC
#undef BUILT
#undef ALIAS
};
// Hidden, writable once: every slot is callable at any time.
extern Libc libc;

// Fills the table. False when it could not, because this thread is already in the middle of it.
bool resolve_libc();

}  // namespace vma
