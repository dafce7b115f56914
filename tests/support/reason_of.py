"""reason_of.py WHAT IP PEER PORT: makes one socket as WHAT says and uses it so that it is decided who serves it.

Prints "ready PID FD" and waits for the end of standard input. At PEER nobody answers, unless the test listens there.
"""

import contextlib
import ctypes
import os
import socket
import struct
import sys

UDPLITE = 136
CLONE_NEWNET = 0x40000000
SYS_BPF, SYS_IO_URING_SETUP = 321, 425  # x86-64
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
libc = ctypes.CDLL(None, use_errno=True)
others = []  # kept open


def udp(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, port))
    return s


def connecting(to, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setblocking(False)
    with contextlib.suppress(OSError):
        s.connect((to, port))
    return s


def read_nothing(s):
    s.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        s.recv(1)
    return s


def without_descriptors(ip, port):
    """A socket that is bound while no descriptor is left."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hogs = []
    with contextlib.suppress(OSError):
        while True:
            hogs.append(os.open("/dev/null", os.O_RDONLY))
    s.bind((ip, port))
    for fd in hogs:
        os.close(fd)
    return s


def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# ---- one function for each WHAT: (ip, peer, port) -> the socket


def undecided(*_):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def ipv6(*_):
    return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)


def family(*_):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    address = struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(80), 0, socket.inet_pton(socket.AF_INET6, "2001:db8::1"), 0)
    assert libc.connect(s.fileno(), address, len(address)) == -1  # the kernel says why
    return s


def protocol(*_):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM, UDPLITE)


def loopback(ip, peer, port):
    return udp("127.0.0.1", port)


def bound(ip, peer, port):
    return udp(ip, port)


def bound_to_any(ip, peer, port):
    return udp("", port)


def shares_address(ip, peer, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((ip, port))
    return read_nothing(s)


def connect(ip, peer, port):
    return connecting(peer, port)


def listener(ip, peer, port):
    others.append(udp(ip, port + 1))  # served by a ring: so there is a thread that answers viewers
    return socket.create_server((ip, port))


def accepted_by_kernel(ip, peer, port):
    others.append(udp(ip, port + 1))
    server = socket.create_server((ip, port), reuse_port=True)
    others.append(server)
    print("listening", flush=True)
    return server.accept()[0]


def shared_memory_stays(ip, peer, port):
    server = socket.create_server((ip, port))
    others.append(server)
    print("listening", flush=True)
    s = server.accept()[0]
    while (word := s.recv(4)) != b"over":
        s.sendall(word)
    return s


def shared_memory_leaves(ip, peer, port):
    """Uses the connection until the test has seen it move."""
    s = socket.create_connection((ip, port))
    for turn in range(1000):
        print("turn", turn, os.getpid(), s.fileno(), "ended", flush=True)
        if sys.stdin.readline() != "more\n":
            break
        for _ in range(20):
            s.sendall(b"more")
            assert s.recv(4) == b"more"
    s.sendall(b"over")
    give_away(s)
    return s


def reuseport(ip, peer, port):
    for _ in range(2):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind((ip, port))
        others.append(s)
    return read_nothing(s)


def multicast(*_):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("239.7.7.7", 7777))
    return s


def broadcast(ip, peer, port):
    return udp(ip.rpartition(".")[0] + ".255", port)


def unsupported(ip, peer, port):
    s = udp(ip, port)
    with contextlib.suppress(OSError):
        s.shutdown(socket.SHUT_RD)  # not connected: it says so, and is left to the kernel all the same
    return s


def give_away(s):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", s.fileno()))])
    right.close()


def passed(ip, peer, port):
    s = udp(ip, port)
    give_away(s)
    return s


def stdio(ip, peer, port):
    s = udp(ip, port)
    libc.fdopen(s.fileno(), b"r+")
    return s


def fork(ip, peer, port):
    s = udp(ip, port)
    child = os.fork()
    if child == 0:
        read_nothing(s)
        os._exit(0)
    os.waitpid(child, 0)
    return s


def spawn(ip, peer, port):
    """A program that has it as its standard input."""
    s = udp(ip, port)
    child = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, s.fileno(), 0)])
    os.waitpid(child, 0)
    return s


def seccomp(ip, peer, port):
    s = udp(ip, port)
    code = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)  # ret SECCOMP_RET_ALLOW
    text = ctypes.create_string_buffer(code)
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    checked(libc.prctl(PR_SET_SECCOMP, 2, struct.pack("=HxxxxxxQ", 1, ctypes.addressof(text)), 0, 0))
    return s


def io_uring(ip, peer, port):
    s = udp(ip, port)
    fd = libc.syscall(SYS_IO_URING_SETUP, 1, ctypes.create_string_buffer(120))  # the kernel may refuse it
    if fd >= 0:
        os.close(fd)
    return s


def other_namespace(ip, peer, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    checked(libc.unshare(CLONE_NEWNET))
    s.bind((ip, port))
    return s


def cgroup(ip, peer, port):
    """In a cgroup with a program that lets everything through. The hierarchy is not mounted in the test's namespaces."""
    root, name = os.environ["CGROUP"].split(":")
    checked(libc.mount(b"none", root.encode(), b"cgroup2", 0, None))
    folder = f"{root}/{name}"
    os.mkdir(folder)
    with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as f:
        f.write(str(os.getpid()))
    code = ctypes.create_string_buffer(bytes.fromhex("b700000001000000 9500000000000000"))
    license = ctypes.create_string_buffer(b"GPL")
    cgroup_skb, prog_load, prog_attach = 8, 5, 8
    load = struct.pack("=IIQQ", cgroup_skb, 2, ctypes.addressof(code), ctypes.addressof(license)).ljust(120, b"\0")
    program = checked(libc.syscall(SYS_BPF, prog_load, load, len(load)))
    at = os.open(folder, os.O_RDONLY)
    attach = struct.pack("=IIII", at, program, 0, 0).ljust(120, b"\0")
    checked(libc.syscall(SYS_BPF, prog_attach, attach, len(attach)))
    return udp(ip, port)


def no_descriptor_at_all(ip, peer, port):
    others.append(ipv6())  # the page is made with it
    return without_descriptors(ip, port)


def no_descriptor_for_a_ring(ip, peer, port):
    others.append(udp("127.0.0.1", port))
    return without_descriptors(ip, port)


def inherited(*_):
    """From a program without the library, as descriptor 9."""
    others.append(ipv6())  # the page is made with it
    return socket.socket(fileno=9)


def made_later(ip, peer, port):
    """After the privileges were given up."""
    others.append(udp(ip, port + 1))
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    print("dropped", os.getpid(), flush=True)
    sys.stdin.readline()
    return udp(ip, port)


def secure(ip, peer, port):
    """The loader preloads nothing into a set-user-id program, so it takes the library itself."""
    library = ctypes.CDLL(os.environ["LIBRARY"])
    fd = checked(library.socket(socket.AF_INET, socket.SOCK_DGRAM, 0))
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(ip))
    checked(library.bind(fd, address, len(address)))
    return socket.socket(fileno=fd)


def main():
    what, ip, peer, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    s = globals()[what](ip, peer, port)
    print("ready", os.getpid(), s.fileno(), flush=True)
    sys.stdin.read()
    os._exit(0)  # with its sockets open


main()
