"""How many programs hang on the TCX hooks of an interface (Linux 6.6; Debian's bpftool is older)."""

import ctypes
import os
import socket
import struct

SYS_BPF, PROG_QUERY = 321, 16  # x86-64; linux/bpf.h
INGRESS, EGRESS = 46, 47  # BPF_TCX_INGRESS, BPF_TCX_EGRESS


def attached(space, *hooks):
    """On the first interface of a namespace."""
    def count():
        total = 0
        for hook in hooks:
            attr = ctypes.create_string_buffer(struct.pack("IIIIQIIQQQ", socket.if_nametoindex(space.dev), hook, *[0] * 8), 120)
            if ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, PROG_QUERY, attr, len(attr)) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            total += struct.unpack_from("I", attr, 24)[0]
        return total
    return space.call(count)
