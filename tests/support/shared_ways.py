"""shared_ways.py WAY IP PORT [...]: sockets that leave our sight: into stdio, AIO, splice, io_uring, another process, another
namespace, behind a system call filter, or away from under our own descriptors. Makes a connection to IP:PORT (tcp), or is a
UDP server on IP:PORT, and does what the way says; the peer is on the kernel. Prints "good" at the end.
"""

import array
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from duplex import (FIRST, LIMIT, begun, dial, echo_blocking, echo_epoll, ended, in_child, must_be_kernel, must_be_offloaded,
                    pattern, served_by_kernel)
from listening import served_at

libc = ctypes.CDLL(None, use_errno=True)
libc.fdopen.restype = libc.freopen.restype = ctypes.c_void_p
libc.fgets.restype = ctypes.c_void_p


def check(result, what="call"):
    if result is None or result == -1:
        raise OSError(ctypes.get_errno(), what)
    return result


# ---- stdio: the peer sends lines and takes what comes

def stdio(ip, port):
    s = begun(ip, port, 10)
    # Lines are waiting: they came before the stream was opened.
    select.select([s], [], [], LIMIT)
    stream = ctypes.c_void_p(libc.fdopen(os.dup(s.fileno()), b"r+"))
    must_be_kernel(s)
    text = ctypes.create_string_buffer(100)
    for i in range(3):
        assert libc.fgets(text, 100, stream) and text.value == b"line %d\n" % i, text.value
    assert libc.fprintf(stream, b"printed %d\n", 7) == 10
    assert libc.fflush(stream) == 0
    assert libc.dprintf(s.fileno(), b"to %s\n", b"descriptor") == 14
    assert libc.fclose(stream) == 0
    s.sendall(b"end\n")
    s.close()


def dprintf(ip, port):
    s = begun(ip, port, 10)
    assert libc.dprintf(s.fileno(), b"to %s\n", b"descriptor") == 14
    must_be_kernel(s)
    s.close()


def standard(ip, port):
    """dup2 to 0 and 1, then libc's own stdin and stdout."""
    s = begun(ip, port, 10)
    saved = os.dup(1)
    os.dup2(s.fileno(), 0)
    os.dup2(s.fileno(), 1)
    must_be_kernel(s)
    s.close()
    stdin = ctypes.c_void_p.in_dll(libc, "stdin")
    text = ctypes.create_string_buffer(100)
    for i in range(3):
        assert libc.fgets(text, 100, stdin) and text.value == b"line %d\n" % i, text.value
    assert libc.printf(b"printed\n") == 8
    assert libc.fflush(None) == 0
    os.dup2(saved, 1)
    # freopen closes what was there.
    with tempfile.NamedTemporaryFile() as file:
        check(libc.freopen(file.name.encode(), b"r", stdin), "freopen")


# ---- calls that only the kernel can do

def rest(s, n):
    """Reads what is still to come: closing a socket with unread data is a reset."""
    while n:
        n -= len(s.recv(n))


def splice(ip, port):
    """Everything echoed by splice through a pipe."""
    s = begun(ip, port)
    r, w = os.pipe()
    while n := os.splice(s.fileno(), w, 65536):
        while n:
            n -= os.splice(r, s.fileno(), n)
    must_be_kernel(s)
    s.close()


def files(ip, port):
    """sendfile, tee, vmsplice: a file, copies of a pipe's content."""
    s = begun(ip, port, 10)
    with tempfile.TemporaryFile() as file:
        file.write(pattern(1, 300_000))
        file.flush()
        sent = 0
        while sent < 300_000:
            sent += os.sendfile(s.fileno(), file.fileno(), sent, 300_000 - sent)
    r, w = os.pipe()
    r2, w2 = os.pipe()
    buffer = ctypes.create_string_buffer(b"from memory")
    iov = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 11)
    assert check(libc.vmsplice(w, iov, 1, 0), "vmsplice") == 11
    assert check(libc.tee(r, w2, 11, 0), "tee") == 11
    assert os.splice(r, s.fileno(), 11) == 11
    assert os.splice(r2, s.fileno(), 11) == 11
    must_be_kernel(s)
    # A socket is not a pipe, here as there.
    for call in (lambda: libc.tee(s.fileno(), w, 1, 0), lambda: libc.vmsplice(s.fileno(), iov, 1, 0)):
        assert call() == -1 and ctypes.get_errno() in (errno.EINVAL, errno.EBADF), ctypes.get_errno()
    rest(s, 21)
    s.close()


class Aiocb(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("opcode", ctypes.c_int), ("prio", ctypes.c_int), ("buf", ctypes.c_void_p),
                ("size", ctypes.c_size_t), ("event", ctypes.c_char * 64), ("_private", ctypes.c_char * 400)]


def aio(ip, port):
    s = begun(ip, port, 10)
    libc.aio_return.restype = ctypes.c_ssize_t
    room = ctypes.create_string_buffer(100)
    words = [ctypes.create_string_buffer(b"listed ") , ctypes.create_string_buffer(b"too")]
    read = Aiocb(fd=s.fileno(), buf=ctypes.addressof(room), size=6)
    read.event = struct.pack("QiiQ", 0, 0, 1, 0)  # SIGEV_NONE
    check(libc.aio_read(ctypes.byref(read)), "aio_read")
    must_be_kernel(s)
    await_aio(read)
    assert libc.aio_return(ctypes.byref(read)) == 6 and room.value == b"line 0", room.value
    for word in words:
        one = Aiocb(fd=s.fileno(), opcode=1, buf=ctypes.addressof(word), size=len(word.value))
        one.event = struct.pack("QiiQ", 0, 0, 1, 0)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(one))
        check(libc.lio_listio(0, pointers, 1, None), "lio_listio")
        assert libc.aio_return(ctypes.byref(one)) == len(word.value)
    rest(s, 15)
    s.close()


def await_aio(one):
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(one))
    end = struct.pack("ll", LIMIT, 0)
    check(libc.aio_suspend(pointers, 1, end), "aio_suspend")
    assert libc.aio_error(ctypes.byref(one)) == 0


def ring(s, how, ip, port):
    """The program makes an io_uring: what is there goes back, what comes is the kernel's."""
    parameters = ctypes.create_string_buffer(120)
    how(parameters)
    must_be_kernel(s)
    echo_blocking(s)
    s.close()
    with dial(ip, port) as later:
        must_be_kernel(later)
        later.settimeout(None)
        echo_blocking(later)


def uring_syscall(ip, port):
    ring(begun(ip, port), lambda p: check(libc.syscall(425, 4, p), "io_uring_setup"), ip, port)


def uring_library(ip, port):
    """By the names that liburing has. Whether there is one or not (-ENOSYS then), the attempt is seen."""
    uring = ctypes.CDLL("liburing.so.2", mode=ctypes.RTLD_GLOBAL)
    structure = ctypes.create_string_buffer(1024)

    def how(_):
        # By the loader's rules, as a program linked with it would: the first definition in scope, which is libvma's.
        assert ctypes.CDLL(None).io_uring_queue_init(4, structure, 0) == 0
        uring.io_uring_queue_exit(structure)

    ring(begun(ip, port), how, ip, port)


# ---- to another process

def receive_and_echo(channel, kind):
    _, (fd,), _, _ = socket.recv_fds(channel, 1, 1)
    s = socket.socket(fileno=fd)
    if kind == "tcp":
        must_be_kernel(s)
        echo_blocking(s)
    else:
        echo_datagrams(s, 6)


def passed(ip, port):
    """SCM_RIGHTS to another process, which echoes; sendmsg by number as well."""
    for by_number in (False, True):
        s = begun(ip, port)
        ours, theirs = socket.socketpair()

        def work():
            s.close()  # the child has what is sent, not what it inherited
            ours.close()
            receive_and_echo(theirs, "tcp")

        pid = in_child(os.fork(), work)
        theirs.close()
        if by_number:
            send_by_number(ours, s.fileno())
        else:
            socket.send_fds(ours, [b"f"], [s.fileno()])
        must_be_kernel(s)
        s.close()
        ended(pid)
        # It comes back as a descriptor that is the kernel's.
        ours.close()


def send_by_number(channel, fd):
    control = ctypes.create_string_buffer(struct.pack("QiiiI", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, fd, 0), 24)
    data = ctypes.create_string_buffer(b"f", 1)
    iov = (ctypes.c_uint64 * 2)(ctypes.addressof(data), 1)
    message = (ctypes.c_uint64 * 7)(0, 0, ctypes.addressof(iov), 1, ctypes.addressof(control), 24, 0)
    assert check(libc.syscall(46, channel.fileno(), message, 0), "sendmsg") == 1


def passed_to_itself(ip, port):
    """The program receives its own socket: two descriptors of one kernel socket."""
    s = begun(ip, port)
    one, two = socket.socketpair()
    socket.send_fds(one, [b"f"], [s.fileno()])
    fd = socket.recv_fds(two, 1, 1)[1][0]
    again = socket.socket(fileno=fd)
    must_be_kernel(again)
    echo_epoll(again, FIRST)
    again.close()
    echo_blocking(s)
    s.close()


def passed_listener(ip, port):
    """A listener that was sent away is accepted from by the receiver, although the sender polls it."""
    listener = socket.create_server((ip, int(port)))
    ours, theirs = socket.socketpair()

    def work():
        listener.close()
        ours.close()
        received = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
        s, _ = received.accept()
        echo_blocking(s)
        s.close()

    pid = in_child(os.fork(), work)
    socket.send_fds(ours, [b"f"], [listener.fileno()])
    watching = select.poll()
    watching.register(listener, select.POLLIN)
    watching.poll(0)
    print("ready", flush=True)
    ended(pid)


def taken(ip, port):
    """pidfd_getfd(2) takes a descriptor out of a process without a word to it: the taker has the twin (README, limits)."""
    s = begun(ip, port)
    pidfd = os.pidfd_open(os.getpid())
    fd = check(libc.syscall(438, pidfd, s.fileno(), 0), "pidfd_getfd")
    copy = socket.socket(fileno=fd)
    try:
        copy.getpeername()
        print("peer name", flush=True)
    except OSError as error:
        print("taken:", errno.errorcode[error.errno], flush=True)
    copy.close()
    echo_blocking(s)
    s.close()


# ---- datagrams

def echo_datagrams(s, count):
    s.settimeout(LIMIT)
    for _ in range(count):
        data, peer = s.recvfrom(2000)
        s.sendto(data, peer)


def udp_server(ip, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, int(port)))
    print("ready", flush=True)
    echo_datagrams(s, 2)
    # Six are sent now and wait in the library.
    select.select([s], [], [], LIMIT)
    print("next", flush=True)
    sys.stdin.readline()
    return s


def udp_fork(ip, port):
    """The child reads what had come before the fork and what comes after."""
    s = udp_server(ip, port)
    ended(in_child(os.fork(), lambda: echo_datagrams(s, 6)))
    echo_datagrams(s, 2)


def udp_parent_ends(ip, port, how):
    """The parent closes the socket, or ends, before the child looks at it; what had come is the child's to read."""
    s = udp_server(ip, port)
    r, w = os.pipe()

    def work():
        os.close(w)
        os.read(r, 1)
        echo_datagrams(s, 8)
        print("good", flush=True)

    pid = in_child(os.fork(), work)
    if how == "exits":
        os._exit(0)
    s.close()
    os.close(w)
    ended(pid)
    os._exit(0)


def udp_passed(ip, port):
    s = udp_server(ip, port)
    ours, theirs = socket.socketpair()

    def work():
        s.close()
        receive_and_echo(theirs, "udp")

    pid = in_child(os.fork(), work)
    socket.send_fds(ours, [b"f"], [s.fileno()])
    ended(pid)
    echo_datagrams(s, 2)


def udp_exec(ip, port):
    s = udp_server(ip, port)
    os.set_inheritable(s.fileno(), True)
    os.execv(sys.executable, [sys.executable, "-B", os.path.abspath(__file__), "udp_continued", str(s.fileno())])


def udp_continued(fd):
    s = socket.socket(fileno=int(fd))
    echo_datagrams(s, 8)


def udp_stdio(ip, port):
    """A datagram is read by fgets and answered by the socket."""
    s = udp_server(ip, port)
    stream = ctypes.c_void_p(libc.fdopen(s.fileno(), b"r"))
    text = ctypes.create_string_buffer(100)
    for _ in range(6):
        assert libc.fgets(text, 100, stream)
        print("read", text.value.decode().strip(), flush=True)
    echo_datagrams(s, 2)


def udp_filter(ip, port):
    """Behind a filter that kills at what the library would do, with six datagrams waiting."""
    s = udp_server(ip, port)
    install(OURS)
    echo_datagrams(s, 8)


def udp_command(ip, port):
    s = udp_server(ip, port)
    done = subprocess.run(["dd", "bs=2000", "count=6", "status=none"], stdin=s, stdout=subprocess.PIPE, timeout=LIMIT)
    for line in done.stdout.decode().splitlines():
        print("read", line, flush=True)
    echo_datagrams(s, 2)


# ---- options that the library does not know

def options(ip, port):
    """Each on a connection of its own: the kernel answers, and the data goes on."""
    program = (ctypes.c_uint16 * 4)(6, 0, 0xffff, 0)  # one instruction: return 65535
    attach = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
    cases = [("TCP_ULP", socket.IPPROTO_TCP, 31, b"nosuch", (errno.ENOENT, errno.EPERM)),
             ("TCP_MD5SIG", socket.IPPROTO_TCP, 14, bytes(216), (errno.EINVAL, 0)),
             ("SO_ATTACH_FILTER", socket.SOL_SOCKET, 26, attach, (0,)),
             ("TCP_REPAIR", socket.IPPROTO_TCP, 19, struct.pack("i", 1), (0,)),
             ("SO_PEEK_OFF", socket.SOL_SOCKET, 42, struct.pack("i", 0), (0, errno.EOPNOTSUPP)),
             ("IP_OPTIONS", socket.IPPROTO_IP, 4, b"\x01\x01\x01\x00", (0,)),
             ("none such", socket.IPPROTO_TCP, 200, struct.pack("i", 1), (errno.ENOPROTOOPT,))]
    for name, level, number, value, expected in cases:
        s = begun(ip, port)
        code = 0
        try:
            s.setsockopt(level, number, value)
        except OSError as error:
            code = error.errno
        assert code in expected, f"{name}: {errno.errorcode.get(code, code)}"
        must_be_kernel(s)
        if name == "TCP_REPAIR":
            s.setsockopt(level, number, struct.pack("i", -1))
        if name == "SO_PEEK_OFF" and code == 0:
            s.setsockopt(level, number, struct.pack("i", -1))
        echo_blocking(s)
        s.close()
        print(name, "good", flush=True)
    s = begun(ip, port)
    try:
        s.setsockopt(socket.IPPROTO_IPV6, 67, 1)
        raise AssertionError("an IPv6 option on an IPv4 socket")
    except OSError as error:
        assert error.errno == errno.ENOPROTOOPT, error
    must_be_offloaded(s)  # nothing to move for
    echo_blocking(s)
    s.close()


# ---- descriptors of the library's own

def hidden():
    """The library's descriptors: in /proc, and refused to the program."""
    numbers = [int(n) for n in os.listdir("/proc/self/fd")]
    return [n for n in numbers if os.path.exists(f"/proc/self/fd/{n}") and libc.fcntl(n, fcntl.F_GETFD) != -1
            and refused(n)]


def refused(n):
    """close() of the library's own is EBADF; close() of the program's would succeed, so ask with dup()."""
    copy = libc.dup(n)
    if copy >= 0:
        os.close(copy)
    return copy == -1


def dup_onto_ours(ip, port):
    """dup2 and dup3 onto every descriptor of the library's: it moves away, the program has the number."""
    s = begun(ip, port)
    if "libvma" in os.environ.get("LD_PRELOAD", ""):
        mine = hidden()
        assert mine, "no descriptor of the library's own was found"
        null = os.open("/dev/null", os.O_RDWR)
        for n in mine:
            assert check(libc.dup2(null, n), f"dup2 onto {n}") == n
            assert os.path.samestat(os.fstat(n), os.fstat(null)), n
        with begun(ip, port) as other:
            echo_blocking(other)
        for n in mine:
            assert libc.dup3(null, n, os.O_CLOEXEC) == n
            os.close(n)
    else:
        with begun(ip, port) as other:
            echo_blocking(other)
    echo_epoll(s)
    s.close()


def close_everything(ip, port):
    """What daemons do: every descriptor above 2 is closed; the peer sees the end, and new sockets work."""
    for how in (lambda: libc.closefrom(3), lambda: libc.close_range(3, 0xffffffff, 0), lambda: os.closerange(3, 70000)):
        s = begun(ip, port)
        how()
        try:
            s.getpeername()
            raise AssertionError("still open")
        except OSError as error:
            assert error.errno == errno.EBADF
        s.detach()
    with begun(ip, port) as s:
        echo_blocking(s)


def low_limit(ip, port):
    """The soft limit goes below the library's numbers: what is open stays so, and new sockets work."""
    s = begun(ip, port)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))
    with begun(ip, port) as other:
        echo_epoll(other)
    waiting = select.poll()
    waiting.register(s, select.POLLIN)
    assert waiting.poll(LIMIT * 1000)
    echo_epoll(s, FIRST)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    echo_blocking(s)
    s.close()


# ---- namespaces

CLONE_NEWNET = 0x40000000


def moved(ip, port, how):
    """The program (or one of its threads) goes to a namespace where nothing is; its connections go on; back again, new ones
    are offloaded again."""
    s = begun(ip, port)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    results = []

    def elsewhere():
        check(libc.unshare(CLONE_NEWNET), "unshare")
        try:
            dial(ip, port)
            results.append("connected")
        except OSError as error:
            results.append(errno.errorcode[error.errno])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            try:
                u.sendto(b"x", (ip, int(port)))
                results.append("sent")
            except OSError as error:
                results.append(errno.errorcode[error.errno])
        echo_blocking(s, FIRST)

    if how == "thread":
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(LIMIT)
    else:
        elsewhere()
        echo_epoll(s, FIRST)
        check(libc.setns(home, CLONE_NEWNET), "setns")
    assert results == ["ENETUNREACH", "ENETUNREACH"], results
    with begun(ip, port) as other:
        echo_blocking(other)
    echo_blocking(s)
    s.close()


def moved_listener(ip, port):
    """A listener made here, accepted from in another namespace: the connection is of the listener's."""
    listener = served_at(ip, port)
    check(libc.unshare(CLONE_NEWNET), "unshare")
    print("ready", flush=True)
    for _ in range(2):
        s, _ = listener.accept()
        assert s.getsockname() == (ip, int(port))
        os.dup2(s.fileno(), 0)  # the kernel's from here on, wherever it was
        echo_blocking(s)
        with open("/dev/null") as null:
            os.dup2(null.fileno(), 0)
        s.close()


def two_namespaces(ip, port, there, ip_there):
    """A connection here, one in the namespace of the file `there`, both offloaded, echoed in turns by one process."""
    s = begun(ip, port)
    fd = os.open(there, os.O_RDONLY)
    check(libc.setns(fd, CLONE_NEWNET), "setns")
    other = begun(ip_there, port)
    echo_epoll(s, FIRST)
    echo_epoll(other, FIRST)
    for c in (s, other):
        echo_blocking(c)
        c.close()


# ---- system call filters

BPF_RET, BPF_JEQ, BPF_LD = 0x06, 0x15, 0x20


def filter_program(killed):
    """Kills the process at one of these system calls, else allows."""
    code = [(BPF_LD, 0, 0, 0)]  # seccomp_data.nr
    for i, number in enumerate(killed):
        code.append((BPF_JEQ, len(killed) - i, 0, number))
    code += [(BPF_RET, 0, 0, 0x7fff0000), (BPF_RET, 0, 0, 0x80000000)]
    raw = b"".join(struct.pack("HBBI", *c) for c in code)
    return ctypes.create_string_buffer(raw), len(code)


def install(killed, by_syscall=False):
    program, n = filter_program(killed)
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", n, ctypes.addressof(program)))
    check(libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    if by_syscall:
        check(libc.syscall(317, 1, 0, fprog), "seccomp")
    else:
        check(libc.prctl(22, 2, fprog, 0, 0), "PR_SET_SECCOMP")


# What the library does and this program does not: bpf, membarrier, eventfd2, setsockopt, raw packets by sendto/recvfrom on a
# ring, timers; futex, mmap and the like are the interpreter's own.
OURS = [321, 324, 290, 54, 307, 299, 232, 281, 271, 62, 203]


def sandbox(ip, port, how):
    """A filter that kills at every call which only the library would make; before it, everything is handed back."""
    s = begun(ip, port)
    undone = dial(ip, port)
    install(OURS, how == "seccomp")
    must_be_kernel(s)
    must_be_kernel(undone)
    undone.settimeout(None)
    later = socket.create_connection((ip, int(port)))
    must_be_kernel(later)
    for c in (undone, later, s):
        while piece := c.recv(65536):
            c.sendall(piece)
        c.close()
    assert subprocess.run(["true"]).returncode == 0


def sandbox_child(ip, port):
    """As sshd: the child of a fork puts a filter on itself and goes on with the inherited connection."""
    s = begun(ip, port)

    def work():
        install(OURS)
        while piece := s.recv(65536):
            s.sendall(piece)

    pid = in_child(os.fork(), work)
    s.close()
    ended(pid)


def sandbox_server(ip, port):
    """A server that filters itself once it listens, while it accepts in another thread."""
    listener = served_at(ip, port)
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept()[0]))
    thread.start()
    print("asleep", flush=True)
    select.select([], [], [], 0.1)  # not needed for the result: more often than not the thread is asleep then
    install(OURS)
    print("filtered", flush=True)
    thread.join(LIMIT)
    accepted.append(listener.accept()[0])
    for s in accepted:
        must_be_kernel(s)
        while piece := s.recv(65536):
            s.sendall(piece)
        s.close()


def sandbox_waiting(ip, port):
    """A server that filters itself while two connections wait to be accepted; a third comes afterwards."""
    listener = served_at(ip, port)
    print("ready", flush=True)
    sys.stdin.readline()
    assert select.select([listener], [], [], LIMIT)[0]
    install(OURS + [46, 47, 52, 292])  # sendmsg, recvmsg, getpeername, dup3
    print("filtered", flush=True)
    for _ in range(3):
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        assert poll.poll(LIMIT * 1000)
        s, peer = listener.accept()
        assert not peer[0].startswith("127."), peer
        while piece := s.recv(65536):
            s.sendall(piece)
        s.close()
    listener.close()


def filtered_from_birth(ip, port):
    """This process, not preloaded, installs a filter that kills at bpf(), then becomes the preloaded program."""
    library = os.environ.pop("LIBRARY_FOR_LATER")
    install([321])
    os.execve(sys.executable, [sys.executable, "-B", os.path.abspath(__file__), "under_filter", ip, port],
              {**os.environ, "LD_PRELOAD": library})


def under_filter(ip, port):
    with dial(ip, port) as s:
        must_be_kernel(s)
        s.settimeout(None)
        echo_blocking(s)


# ---- set-user-id and file capabilities (the program is an interpreter of its own, see the test)

def secure_kernel(ip, port):
    with dial(ip, port) as s:
        must_be_kernel(s)
        s.settimeout(None)
        echo_blocking(s)


def secure_offloaded(ip, port):
    assert os.getuid() != 0
    with dial(ip, port) as s:
        s.settimeout(None)
        echo_blocking(s, FIRST)
        if os.environ.get("EXPECT") == "offloaded":
            assert not served_by_kernel(s), "the connection is the kernel's"
        # More than repair can do without its capability: it has it, from the file.
        os.dup2(s.fileno(), 0)
        must_be_kernel(s)
        echo_blocking(s)
        os.close(0)


def main():
    signal.alarm(3 * LIMIT)
    ways = {name: f for name, f in globals().items() if callable(f) and getattr(f, "__module__", None) == "__main__"}
    ways[sys.argv[1]](*sys.argv[2:])
    print("good", flush=True)


if __name__ == "__main__":
    main()
