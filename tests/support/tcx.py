"""How many programs hang on the TCX hooks of an interface (Linux 6.6; Debian's bpftool is older), and what their tables have."""

import ctypes
import os
import socket
import struct

SYS_BPF, MAP_GET_NEXT_KEY, MAP_GET_FD_BY_ID, PROG_QUERY = 321, 4, 14, 16  # x86-64; linux/bpf.h
MOST_FLOWS = 131072  # VMA_FLOWS: only the table of flows has room for so many
INGRESS, EGRESS = 46, 47  # BPF_TCX_INGRESS, BPF_TCX_EGRESS


def _bpf(command, attr):
    """Its result, and `attr` as the kernel leaves it; OSError."""
    attr = ctypes.create_string_buffer(attr, 120)
    result = ctypes.CDLL(None, use_errno=True).syscall(SYS_BPF, command, attr, len(attr))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, attr


def flows(pid):
    """How many flows the table has that this process writes: its own, and those of others in its network namespace."""
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        if int(fields.get("max_entries", 0)) == MOST_FLOWS:
            break
    else:
        raise LookupError(f"process {pid} has no table of flows")
    table, _ = _bpf(MAP_GET_FD_BY_ID, struct.pack("III", int(fields["map_id"]), 0, 0))
    try:
        key, count = None, 0
        after = ctypes.create_string_buffer(int(fields["key_size"]))
        while True:
            _bpf(MAP_GET_NEXT_KEY, struct.pack("IIQQQ", table, 0, ctypes.addressof(key) if key is not None else 0, ctypes.addressof(after), 0))
            key, count = ctypes.create_string_buffer(after.raw, len(after)), count + 1
    except FileNotFoundError:
        return count
    finally:
        os.close(table)


def _attached(ifindex, hooks):
    total = 0
    for hook in hooks:
        _, attr = _bpf(PROG_QUERY, struct.pack("IIIIQIIQQQ", ifindex, hook, *[0] * 8))
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
