#!/usr/bin/env python3
"""Compares what real programs import from libc with what libvma.so takes the place of.

usage: coverage.py EXPORTS NOT_HOOKED
A libc symbol that touches descriptors, sockets, processes or signals and that one of the programs imports must be exported
by libvma.so or stand in NOT_HOOKED with a reason. Programs that are not installed are named; at least five must be there.
"""
import glob
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
LIBDIR = "/usr/lib/x86_64-linux-gnu"
CONCERNS = re.compile(
    r"sock|recv|send|accept|bind$|connect|listen|poll|select|read|write|open|close|shutdown|dup|pipe|^_*f?print|^_*v[df]print|dprintf"
    r"|fcntl|ioctl|fork|exec|spawn|clone|exit|sig|^aio|lio_|uring|eventfd|notify|timerfd|memfd|^set(res|re|e|fs)?[ug]id|groups$|capset"
    r"|unshare|setns|prctl|splice|^tee$|vmsplice|copy_file|^kill|raise$|abort|alarm|jmp|cancel|syscall|daemon|pty$|login"
    r"|wait|getaddrinfo|gethost|getnameinfo|putc|puts$|gets$|atfork|fileno|seccomp|isfdtype|mark$|__res_|closefrom")
# What the expression catches by accident.
UNRELATED = re.compile(
    r"pthread_(mutex|cond|rwlock|barrier|attr|key|spin|once|condattr|mutexattr|rwlockattr)|^sem_|regexec|is(print|wprint)|thrd|cnd_"
    r"|getgroups|__vs?n?printf|isprint|iswprint|scheduler|copysign|readpassphrase|^s?n?printf$|^_Z|significand|sigstack|pthread_[gs]et(specific|name|affinity)"
    r"|pthread_(self|equal|getcpuclockid|getattr_np|getspecific)|assign|mbsrtowcs|bindtextdomain|bind_textdomain|^strn?dup$|__pthread_key_create")

OUR_OWN = re.compile(r"(vma|xlio)_")
# liburing's.
ELSEWHERE = {"io_uring_queue_init", "io_uring_queue_init_params", "io_uring_queue_init_mem", "io_uring_setup"}


def dynamic(path, option):
    out = subprocess.run(["nm", "-D", option, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.split()}


def programs():
    found, missing = {}, []
    def add(name, paths):
        paths = [os.path.realpath(p) for p in paths if p and os.path.exists(p)]
        if paths:
            found[name] = paths
        else:
            missing.append(name)
    for name in ("sockperf", "redis-server", "nginx", "node", "sshd"):
        add(name, [shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin:/sbin")])
    add("iperf3", [shutil.which("iperf3")] + glob.glob(LIBDIR + "/libiperf.so.0"))
    add("curl", [shutil.which("curl")] + glob.glob(LIBDIR + "/libcurl.so.4") + glob.glob(LIBDIR + "/libcurl-gnutls.so.4"))
    modules = [getattr(importlib.import_module(m), "__file__", None) for m in ("_socket", "select", "_posixsubprocess", "_asyncio")]
    add("python3", [sys.executable] + modules + glob.glob(os.path.join(sysconfig.get_config_var("LIBDIR") or "/", "libpython3*.so*")))
    return found, missing


def main():
    exports = set(open(sys.argv[1]).read().split())
    libc = dynamic(LIBC, "--defined-only")
    reasons = {}
    errors = []
    for line in open(sys.argv[2]):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        names, _, reason = line.partition(" : ")
        if not reason:
            errors.append(f"no reason: {line}")
        for name in names.split():
            if name in exports:
                errors.append(f"{name} is hooked and listed as not hooked")
            elif name not in libc:
                errors.append(f"{name} is not exported by this libc")
            if name in reasons:
                errors.append(f"{name} is listed twice")
            reasons[name] = reason
    errors += [f"{name} is exported by libvma.so but unknown to libc" for name in sorted(exports - libc - ELSEWHERE)
               if not OUR_OWN.match(name)]
    found, missing = programs()
    hooked = set()
    for name, paths in found.items():
        imported = set().union(*(dynamic(p, "--undefined-only") for p in paths)) & libc
        concerned = {s for s in imported if CONCERNS.search(s) and not UNRELATED.search(s)}
        hooked |= imported & exports
        for symbol in sorted(concerned - exports - set(reasons)):
            errors.append(f"{name} imports {symbol}: neither hooked nor in {os.path.basename(sys.argv[2])}")
        print(f"{name}: {len(imported)} libc symbols, {len(imported & exports)} hooked, {len(concerned - exports)} with a reason")
    print(f"exported {len(exports)}, of which the programs import {len(hooked)}")
    for name in missing:
        print(f"not installed here: {name}")
    if len(found) < 5:
        errors.append(f"only {len(found)} programs found")
    for e in errors:
        print("ERROR:", e)
    return 1 if errors else 0


sys.exit(main())
