"""A program whose sockets show what a setting does, for test_settings.py. It does one thing, says so, and waits for the end of
its input."""

import ctypes
import os
import select
import socket
import sys


def connect(ip, port):
    s = socket.create_connection((ip, int(port)), timeout=10)
    for _ in range(5):
        s.getsockname()
    return s


def listen(ip, port):
    # With it the library has started, and has a statistics page, whatever becomes of the listener.
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((ip, int(port) + 1))
    s = socket.socket()
    s.bind((ip, int(port)))
    s.listen()
    return s, datagrams


def datagram(ip, port, size):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((ip, int(port)))
    s.send(b"first")  # by the kernel, which finds the neighbour
    if s.recv(10) != b"answer":
        sys.exit("no answer")
    s.send(bytes(int(size)))
    return s


def options():
    """What new sockets say of themselves, and a TCP socket after the program has decided otherwise."""
    tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    nodelay = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    print(f"nodelay={nodelay} undone={tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)} "
          f"loop={udp.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP)}", flush=True)
    return tcp, udp


def unread(ip, port):
    """A socket that takes datagrams nobody reads."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the least there is
    s.bind((ip, int(port)))
    return s


def answers(ip, port, call):
    """Answers each datagram, waiting for it by `call`, until one says "end"."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, int(port)))
    waiting = select.poll()
    waiting.register(s, select.POLLIN)
    print("ready", flush=True)
    text = b""
    while text != b"end":
        if call == "poll":
            waiting.poll()
        text, peer = s.recvfrom(100)
        s.sendto(text, peer)
    return s


def looks(ip, port, most):
    """How many calls that do not wait it takes to find a datagram that came by the kernel."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, int(port)))
    s.setblocking(False)

    def found():
        try:
            return s.recv(10)
        except BlockingIOError:
            return b""

    for _ in range(10):
        found()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(b"own", (ip, int(port)))  # an address of this host: the kernel's way, at once
    print("looks", next((n for n in range(1, int(most) + 1) if found()), 0), flush=True)
    return s


def queued(ip, port, count):
    """Reads so many datagrams, which wait, when it is told to."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.bind((ip, int(port)))
    print("bound", flush=True)
    sys.stdin.readline()
    for _ in range(int(count)):
        s.recv(100, socket.MSG_DONTWAIT)
    return s


def both(ip, port, calls):
    """How many of so many calls of poll() tell of a pipe while a datagram waits, too."""
    s = unread(ip, port)
    print("ready", flush=True)
    ours, all_of_them = select.poll(), select.poll()
    pipe, end = os.pipe()
    os.write(end, b"x")
    ours.register(s, select.POLLIN)
    ours.poll()
    for fd in (s.fileno(), pipe):
        all_of_them.register(fd, select.POLLIN)
    print("told", sum(pipe in dict(all_of_them.poll()) for _ in range(int(calls))), flush=True)
    return s, pipe, end


def first(ip, port):
    """Which of a socket and standard input poll() tells of first; called once before, when there is nothing."""
    s = unread(ip, port)
    waiting = select.poll()
    for fd in (s.fileno(), 0):
        waiting.register(fd, select.POLLIN)
    waiting.poll(0)
    print("ready", flush=True)
    print("told", *sorted("input" if fd == 0 else "socket" for fd, _ in waiting.poll()), flush=True)
    return s


def unserved(ip, port, kind):
    """Asks for what only the kernel has, for a socket that is offloaded."""
    if kind == "tcp":
        s = socket.create_connection((ip, int(port)), timeout=10)
    else:
        s = unread(ip, port)
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        print("taken", flush=True)
    except OSError as error:
        print("refused", error.errno, flush=True)
    return s


def options_of_a_connection(ip, port, times):
    """Sets options again and again, then looks at them."""
    s = socket.create_connection((ip, int(port)), timeout=10)
    options = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
               (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
               (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    for i in range(int(times)):
        for level, name in options:
            s.setsockopt(level, name, i + 1)
    print("set", flush=True)
    print("now", *(s.getsockopt(level, name) for level, name in options), flush=True)
    return s


def sends(ip, port, count):
    """So many small sends, and nothing else (with a timeout Python calls poll() before each)."""
    s = socket.create_connection((ip, int(port)), timeout=10)
    s.settimeout(None)
    for _ in range(int(count)):
        s.send(b"x")
    return s


def crash(ip, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, int(port)))
    print("about to crash", flush=True)
    ctypes.string_at(8)


MODES = (connect, listen, datagram, options, unread, answers, looks, queued, both, first, unserved, options_of_a_connection, sends,
         crash)
sockets = {mode.__name__: mode for mode in MODES}[sys.argv[1]](*sys.argv[2:])
print("ready", flush=True)
sys.stdin.read()
