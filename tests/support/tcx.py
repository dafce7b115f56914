"""How many programs hang on the TCX hooks of an interface (Linux 6.6; Debian's bpftool is older)."""

import ctypes
import os
import socket
import struct

SYS_BPF, PROG_QUERY = 321, 16  # x86-64; linux/bpf.h
INGRESS, EGRESS = 46, 47  # BPF_TCX_INGRESS, BPF_TCX_EGRESS


def _attached(ifindex, hooks):
    total = 0
    for hook in hooks:
        attr = ctypes.create_string_buffer(struct.pack("IIIIQIIQQQ", ifindex, hook, *[0] * 8), 120)
        if ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, PROG_QUERY, attr, len(attr)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        total += struct.unpack_from("I", attr, 24)[0]
    return total


def attached(space, *hooks):
    """On the first interface of a namespace."""
    return space.call(lambda: _attached(socket.if_nametoindex(space.dev), hooks))


def left(space):
    """What programs with rings may leave in a namespace: (interface, programs on it) for each that has any, and the names of the shm ring."""
    def look():
        found = [(name, _attached(index, (INGRESS, EGRESS))) for index, name in socket.if_nameindex()]
        with open("/proc/thread-self/net/unix", encoding="ascii", errors="replace") as table:
            return [(name, count) for name, count in found if count] + [line.split()[-1] for line in table if "@vma." in line]
    return space.call(look)
