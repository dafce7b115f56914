"""tcp_talk.py CASE IP PORT: one end-point behaviour of a TCP socket as a program sees it, for comparison with the kernel's.

Runs as the subject (the process whose stack is compared); the other end is tcp_partner.py, always a kernel program, at
IP:PORT, which does what the first bytes of a connection (or a command connection) tell it. Prints one line of JSON: what
every call returned, error names instead of numbers, in order. Times are only noted as "soon" or "late".
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time

IP, PORT = sys.argv[2], int(sys.argv[3])
LIMIT = 10
seen = []


def note(name, call, *args, **kwargs):
    """Calls and notes the result or the error's name; the result."""
    begin = time.monotonic()
    try:
        result = call(*args, **kwargs)
        seen.append([name, shown(result)])
        return result
    except OSError as error:
        seen.append([name, "timeout" if error.errno is None else errno.errorcode[error.errno]])
        return None
    finally:
        if time.monotonic() - begin > LIMIT:
            seen.append([name, "took too long"])


def shown(result):
    if isinstance(result, bytes):
        return result.decode("latin1") if len(result) < 100 else f"{len(result)} bytes"
    if isinstance(result, (int, str, type(None), bool)):
        return result
    if isinstance(result, (tuple, list)):
        return [shown(x) for x in result]
    return type(result).__name__


def raw():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def to_partner(order):
    """A connection whose partner does what `order` says (tcp_partner.py)."""
    s = raw()
    s.connect((IP, PORT))
    s.sendall(order.encode().ljust(16))
    return s


def names(bits):
    return [n for n in ("POLLIN", "POLLPRI", "POLLOUT", "POLLERR", "POLLHUP", "POLLRDHUP", "POLLNVAL") if bits & getattr(select, n)]


EVERYTHING = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP


def polled(s, want=EVERYTHING, timeout=0):
    p = select.poll()
    p.register(s, want)
    events = p.poll(timeout * 1000)
    return names(events[0][1]) if events else []


def epolled(s, want=EVERYTHING, timeout=0):
    with select.epoll() as ep:
        ep.register(s, want)
        events = ep.poll(timeout)
        return names(events[0][1]) if events else []


def selected(s, timeout=0):
    return [len(x) for x in select.select([s], [s], [s], timeout)]


def until(s, bits):
    """Waits until all of these poll bits are on."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if set(bits) <= set(polled(s)):
            return True
        select.select([], [], [], 0.002)
    return False


def so_error(s):
    number = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return errno.errorcode.get(number, number)


def state(s):
    return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def all_of(s):
    note("poll", polled, s)
    note("epoll", epolled, s)
    note("select", selected, s)


def reader(s, size=65536):
    note("recv", s.recv, size)


# ---- connecting

def fresh():
    s = raw()
    all_of(s)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("recv", s.recv, 1)
    note("getpeername", s.getpeername)
    note("shutdown", s.shutdown, socket.SHUT_WR)
    note("accept", s.accept)
    note("getsockname", s.getsockname)
    note("SO_ERROR", so_error, s)


def refused():
    s = raw()
    note("connect", s.connect, (IP, PORT + 999))
    note("SO_ERROR", so_error, s)
    all_of(s)
    note("again", s.connect, (IP, PORT + 999))
    note("elsewhere", s.connect, (IP, PORT))
    note("send", s.send, b"echo            hello")
    note("recv", s.recv, 5)


def refused_nonblocking():
    for wait in (polled, epolled):
        s = raw()
        s.setblocking(False)
        note("connect", s.connect_ex, (IP, PORT + 999))
        note("events", wait, s, select.POLLOUT, 5)
        note("connect_ex", s.connect_ex, (IP, PORT + 999)) if wait is polled else note("SO_ERROR", so_error, s)
        note("SO_ERROR", so_error, s)
        note("send", s.send, b"x", socket.MSG_NOSIGNAL)
        note("recv", s.recv, 1)


def nonblocking():
    s = raw()
    s.setblocking(False)
    note("connect", s.connect_ex, (IP, PORT))
    note("events", polled, s, select.POLLOUT, 5)
    note("SO_ERROR", so_error, s)
    note("connect", s.connect_ex, (IP, PORT))
    note("connect", s.connect_ex, (IP, PORT))
    note("peer", lambda: s.getpeername() == (IP, PORT))
    note("name", lambda: s.getsockname()[0])
    all_of(s)
    note("recv", s.recv, 1)


def timeout():
    """The address answers no SYN; the partner's namespace drops them (a blackhole made by the test)."""
    s = raw()
    s.settimeout(0.5)
    note("connect", s.connect, (sys.argv[4], PORT))
    s.setblocking(False)
    note("connect", s.connect_ex, (sys.argv[4], PORT))
    all_of(s)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("recv", s.recv, 1)
    note("getpeername", s.getpeername)
    s = raw()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
    note("SNDTIMEO", s.connect, (sys.argv[4], PORT))
    s = raw()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1)
    note("SYNCNT", s.connect, (sys.argv[4], PORT))
    note("SO_ERROR", so_error, s)
    s = raw()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500)
    note("USER_TIMEOUT", s.connect, (sys.argv[4], PORT))


def unreachable():
    s = raw()
    note("no route", s.connect, ("203.0.113.1", 80))
    s = raw()
    note("no neighbour", s.connect, (IP.rsplit(".", 1)[0] + ".77", 80))


def bound():
    s = raw()
    s.bind((sys.argv[4], 0))
    port = s.getsockname()[1]
    s.connect((IP, PORT))
    note("kept", lambda: s.getsockname() == (sys.argv[4], port))
    t = raw()
    note("second", t.bind, (sys.argv[4], port))
    note("bind again", s.bind, (sys.argv[4], 0))
    note("listen", s.listen)
    note("connect", s.connect, (IP, PORT))


# ---- data and flags

def flags():
    s = to_partner("hello")  # the partner sends "hello world"
    note("WAITALL", s.recv, 5, socket.MSG_WAITALL)
    note("PEEK", s.recv, 3, socket.MSG_PEEK)
    until(s, ["POLLIN"])
    note("PEEK all", s.recv, 100, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    note("TRUNC", lambda: s.recv_into(bytearray(3), 3, socket.MSG_TRUNC | socket.MSG_DONTWAIT))
    note("rest", s.recv, 100)
    note("DONTWAIT", s.recv, 100, socket.MSG_DONTWAIT)
    note("ERRQUEUE", s.recv, 100, socket.MSG_ERRQUEUE)
    note("OOB", s.recv, 1, socket.MSG_OOB)
    note("zero", s.recv, 0)
    note("send zero", s.send, b"")
    note("recvmsg", s.recvmsg, 10, 100, socket.MSG_DONTWAIT)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200000))
    begin = time.monotonic()
    note("RCVTIMEO", s.recv, 1)
    note("waited", lambda: 0.19 < time.monotonic() - begin < 5)
    note("RCVTIMEO WAITALL", s.recv, 1, socket.MSG_WAITALL)
    note("from", s.recvfrom, 10, socket.MSG_DONTWAIT)
    s.sendall(b"more")
    until(s, ["POLLIN"])
    note("recvfrom", s.recvfrom, 4)


def message():
    s = to_partner("echo")
    note("sendmsg", s.sendmsg, [b"one", b"", b"two", b"three"])
    note("recvmsg", lambda: s.recvmsg(11, 0, socket.MSG_WAITALL)[0])
    s.sendall(b"abcdef")
    until(s, ["POLLIN"])
    a, b = bytearray(2), bytearray(4)
    note("recvmsg_into", lambda: s.recvmsg_into([a, b], 0, socket.MSG_WAITALL)[0])
    note("bytes", lambda: bytes(a + b))
    note("sendto", s.sendto, b"x", (IP, PORT + 1))
    note("recv", s.recv, 1)
    s.sendall(b"12345")
    until(s, ["POLLIN"])
    note("FIONREAD", lambda: struct.unpack("i", fcntl.ioctl(s, 0x541B, b"\0\0\0\0"))[0])
    note("os.read", os.read, s.fileno(), 3)
    note("os.write", os.write, s.fileno(), b"6")
    note("WAITALL", s.recv, 3, socket.MSG_WAITALL)


def send_timeout():
    s = to_partner("idle")
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
    data = b"x" * (64 << 20)
    begin = time.monotonic()
    part = s.send(data)
    note("part", lambda: 0 < part < len(data))
    note("waited", lambda: 0.25 < time.monotonic() - begin < 8)
    note("events", polled, s)
    note("DONTWAIT", s.send, b"x" * 100000, socket.MSG_DONTWAIT)


def low_water():
    s = to_partner("hello")
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    note("recv waits", lambda: polled(s, select.POLLIN, 0.2))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    note("poll", polled, s, select.POLLIN, 5)


# ---- ends

def half_close():
    s = to_partner("echoeof")  # echoes until our FIN, then sends "bye" and closes
    s.sendall(b"data")
    note("shutdown", s.shutdown, socket.SHUT_WR)
    all_of(s) if until(s, ["POLLRDHUP"]) else note("no RDHUP", lambda: 0)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("recv", s.recv, 100, socket.MSG_WAITALL)
    note("eof", s.recv, 1)
    note("eof", s.recv, 1)
    all_of(s)
    note("shutdown", s.shutdown, socket.SHUT_WR)
    note("getpeername", lambda: s.getpeername()[0])


def half_closed():
    s = to_partner("finfirst")  # closes its sending side at once and echoes what comes to its log
    note("recv", s.recv, 1)
    all_of(s)
    note("send", s.send, b"still")
    note("shutdown RD", s.shutdown, socket.SHUT_RD)
    note("send", s.send, b" here")
    note("shutdown WR", s.shutdown, socket.SHUT_WR)
    note("recv", s.recv, 1)
    until(s, ["POLLHUP"])
    all_of(s)


def shut_read():
    s = to_partner("echo")
    note("shutdown", s.shutdown, socket.SHUT_RD)
    note("recv", s.recv, 1)
    all_of(s)
    note("send", s.send, b"abc")
    until(s, ["POLLIN"])
    note("shutdown RDWR", s.shutdown, socket.SHUT_RDWR)
    note("send", s.send, b"abc", socket.MSG_NOSIGNAL)


def reset():
    s = to_partner("reset")  # closes with SO_LINGER 0
    until(s, ["POLLERR"])
    all_of(s)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("recv", s.recv, 1)
    note("SO_ERROR", so_error, s)
    note("getpeername", s.getpeername)
    all_of(s)
    note("shutdown", s.shutdown, socket.SHUT_WR)


def reset_with_data():
    s = to_partner("hellorst")  # sends "hello world", waits a moment, resets
    until(s, ["POLLERR"])
    note("recv", s.recv, 100)
    note("recv", s.recv, 100)
    note("recv", s.recv, 100)


def listen_again():
    """A listener that was shut down refuses, and listens again when it is told to."""
    s = listener()
    s.setblocking(False)
    note("first", s.accept)
    port = s.getsockname()[1]
    note("shutdown", s.shutdown, socket.SHUT_RDWR)
    q = order(f"dialwait {port}")
    note("refused", q.recv, 100)
    note("listen", s.listen, 5)
    note("accept", s.accept)
    o = order(f"dial {port}")
    note("events", polled, s, select.POLLIN, 5)
    c, _ = s.accept()
    c.setblocking(True)
    note("recv", c.recv, 100)
    o.close()


def sigpipe():
    caught = []
    signal.signal(signal.SIGPIPE, lambda *_: caught.append("SIGPIPE"))
    s = to_partner("reset")
    until(s, ["POLLERR"])
    note("recv", s.recv, 1)
    note("NOSIGNAL", s.send, b"x", socket.MSG_NOSIGNAL)
    note("caught", lambda: list(caught))
    note("send", s.send, b"x")
    note("caught", lambda: list(caught))
    note("write", os.write, s.fileno(), b"x")
    note("caught", lambda: list(caught))
    t = to_partner("idle")
    t.shutdown(socket.SHUT_WR)
    note("after shutdown", t.send, b"x")
    note("caught", lambda: list(caught))
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def write_after_peer_close():
    s = to_partner("close")  # closes at once, everything read
    note("eof", s.recv, 1)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    until(s, ["POLLERR"]) or note("no POLLERR", lambda: 0)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("recv", s.recv, 1)
    all_of(s)


# What the partner sees of our end is in its log, which the test compares, too.

def close_unread():
    s = to_partner("report hello")  # sends hello, then notes how the connection ends
    until(s, ["POLLIN"])
    note("close", s.close)


def linger_zero():
    s = to_partner("report")
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    note("close", s.close)


def linger_some():
    s = to_partner("report")
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    s.sendall(b"x" * 300000)
    note("close", s.close)


def close_data():
    s = to_partner("report")
    s.sendall(b"x" * 3000000)
    note("close", s.close)


def urgent():
    s = to_partner("report")
    note("send", s.send, b"abc")
    note("MORE", s.send, b"def", socket.MSG_MORE)
    note("send", s.send, b"ghi")
    s.close()


# ---- listening: the subject is the server, the partner (a command connection) makes connections to it

def listener(backlog=16, ip="0.0.0.0"):
    s = raw()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((ip, 0))
    s.listen(backlog)
    return s


def order(text):
    """The partner does something towards us; its answer."""
    s = to_partner(text)
    s.settimeout(LIMIT)
    return s


def listening():
    s = listener()
    s.setblocking(False)
    note("accept", s.accept)
    all_of(s)
    note("recv", s.recv, 1)
    note("send", s.send, b"x", socket.MSG_NOSIGNAL)
    note("getpeername", s.getpeername)
    note("connect", s.connect_ex, (IP, PORT))
    o = order(f"dial {s.getsockname()[1]}")
    note("events", polled, s, select.POLLIN, 5)
    c, peer = s.accept()
    note("peer", lambda: peer[0])
    note("name", lambda: c.getsockname() == (o.getsockname()[0], s.getsockname()[1]))
    note("peername", lambda: c.getpeername() == peer)
    note("blocking", lambda: fcntl.fcntl(c, fcntl.F_GETFL) & os.O_NONBLOCK)
    c.setblocking(True)
    note("recv", c.recv, 100)
    c.sendall(b"answer")
    note("partner", o.recv, 100)
    note("shutdown", s.shutdown, socket.SHUT_RD)
    note("accept", s.accept)
    all_of(s)


def accept_flags():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    s = listener()
    s.setblocking(False)
    note("first", s.accept)
    s.setblocking(True)
    for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
        o = order(f"dial {s.getsockname()[1]}")
        fd = libc.accept4(s.fileno(), None, None, flags)
        note("fd", lambda: fd >= 0)
        note("nonblock", lambda: bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))
        note("cloexec", lambda: bool(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC))
        os.close(fd)
        o.close()
    note("bad", lambda: (libc.accept4(s.fileno(), None, None, 1), errno.errorcode[ctypes.get_errno()]))
    s.settimeout(None)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200000))
    note("RCVTIMEO", lambda: (libc.accept4(s.fileno(), None, None, 0), errno.errorcode[ctypes.get_errno()]))


def inherited():
    s = listener()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100000)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12345)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
    s.setblocking(False)
    note("first", s.accept)
    s.setblocking(True)
    o = order(f"dial {s.getsockname()[1]}")
    c, _ = s.accept()
    for level, name in ((socket.IPPROTO_TCP, "TCP_NODELAY"), (socket.SOL_SOCKET, "SO_KEEPALIVE"),
                        (socket.IPPROTO_TCP, "TCP_KEEPIDLE"), (socket.SOL_SOCKET, "SO_RCVBUF"),
                        (socket.SOL_SOCKET, "SO_SNDBUF"), (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"),
                        (socket.IPPROTO_IP, "IP_TOS"), (socket.IPPROTO_IP, "IP_TTL"), (socket.SOL_SOCKET, "SO_REUSEADDR"),
                        (socket.SOL_SOCKET, "SO_ERROR"), (socket.SOL_SOCKET, "SO_TYPE"),
                        (socket.SOL_SOCKET, "SO_ACCEPTCONN")):
        note(name, c.getsockopt, level, getattr(socket, name))
    note("SO_LINGER", lambda: list(struct.unpack("ii", c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))))
    note("state", state, c)
    note("listener state", state, s)
    o.close()


def backlog():
    """More connections than the backlog: the first ones are served; the rest waits for room and is served then."""
    s = listener(backlog=2)
    s.setblocking(False)
    note("first", s.accept)
    o = order(f"dials {s.getsockname()[1]} 5")
    until(s, ["POLLIN"])
    s.settimeout(LIMIT)
    served = 0
    for _ in range(5):
        c, _ = s.accept()
        if c.recv(100):
            served += 1
    note("served", lambda: served)
    o.close()


def listener_closes():
    """A listener that goes takes what waits with it, and leaves what was accepted."""
    s = listener()
    s.setblocking(False)
    note("first", s.accept)
    port = s.getsockname()[1]
    s.settimeout(LIMIT)
    o = order(f"dial {port}")
    c, _ = s.accept()
    p = order(f"dialwait {port}")  # connects, is never accepted; tells how that ended
    until(s, ["POLLIN"])
    s.close()
    note("waiting one", p.recv, 100)
    note("recv", c.recv, 100)
    c.sendall(b"answer")
    note("partner", o.recv, 100)
    q = order(f"dialwait {port}")
    note("afterwards", q.recv, 100)


def loopback_and_ring():
    s = listener()
    s.setblocking(False)
    note("first", s.accept)
    port = s.getsockname()[1]
    s.settimeout(LIMIT)
    for wait in (polled, epolled):
        for _ in range(3):
            o = order(f"dial {port}")
            note("events", wait, s, select.POLLIN, 5)
            c, peer = s.accept()
            note("ring", lambda: peer[0] == IP)
            note("recv", c.recv, 100)
            c.close()
            o.close()
            i = raw()
            i.connect(("127.0.0.1", port))
            i.sendall(b"inside")
            note("events", wait, s, select.POLLIN, 5)
            c, peer = s.accept()
            note("loopback", lambda: peer[0])
            note("recv", c.recv, 100)
            c.sendall(b"back")
            note("inside", i.recv, 100)
            c.close()
            i.close()


def blocking_accept_both():
    """A blocked accept() wakes for a connection of either kind."""
    import threading
    s = listener()
    s.setblocking(False)
    note("first", s.accept)
    s.setblocking(True)
    port = s.getsockname()[1]
    got = []

    def take():
        for _ in range(2):
            c, peer = s.accept()
            got.append(c.recv(100).decode())
    t = threading.Thread(target=take)
    t.start()
    o = order(f"dial {port}")
    end = time.monotonic() + LIMIT
    while not got and time.monotonic() < end:
        select.select([], [], [], 0.002)
    i = raw()
    i.connect(("127.0.0.1", port))
    i.sendall(b"inside")
    t.join(LIMIT)
    note("got", lambda: list(got))
    o.close()



def readiness():
    s = to_partner("echo")
    all_of(s)
    s.sendall(b"x")
    until(s, ["POLLIN"])
    all_of(s)
    reader(s)
    all_of(s)
    note("state", state, s)
    with select.epoll() as ep:
        ep.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        note("edge", lambda: [names(e) for _, e in ep.poll(1)])
        note("edge again", lambda: [names(e) for _, e in ep.poll(0)])
        s.sendall(b"y")
        until(s, ["POLLIN"])
        note("edge in", lambda: [names(e) for _, e in ep.poll(1)])
        note("edge again", lambda: [names(e) for _, e in ep.poll(0)])
        reader(s)
        ep.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
        s.sendall(b"z")
        note("oneshot", lambda: [names(e) for _, e in ep.poll(5)])
        note("oneshot again", lambda: [names(e) for _, e in ep.poll(0)])


def duplicates():
    s = to_partner("echo")
    d = s.dup()
    s.sendall(b"a")
    note("recv", d.recv, 1)
    s.close()
    d.sendall(b"b")
    note("recv", d.recv, 1)
    note("name", lambda: d.getpeername() == (IP, PORT))
    note("stdio", lambda: d.makefile("rb", buffering=0).readable())


def simultaneous_threads():
    """A reader that is blocked when another thread shuts the socket down."""
    import threading
    s = to_partner("idle")
    got = []
    t = threading.Thread(target=lambda: got.append(s.recv(1)))
    t.start()
    select.select([], [], [], 0.05)
    note("shutdown", s.shutdown, socket.SHUT_RD)
    t.join(LIMIT)
    note("reader", lambda: [x.decode() for x in got])


CASES = [fresh, refused, refused_nonblocking, nonblocking, timeout, unreachable, bound, flags, message, send_timeout,
         low_water, half_close, half_closed, shut_read, reset, reset_with_data, sigpipe, write_after_peer_close, close_unread,
         linger_zero, linger_some, close_data, urgent, listening, accept_flags, inherited, backlog, listener_closes, listen_again,
         loopback_and_ring, blocking_accept_both, readiness, duplicates, simultaneous_threads]

if __name__ == "__main__":
    signal.alarm(60)
    try:
        {f.__name__: f for f in CASES}[sys.argv[1]]()
    finally:
        print("seen " + json.dumps(seen), flush=True)
