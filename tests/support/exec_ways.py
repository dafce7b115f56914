"""exec_ways.py WAY IP PORT [...]: connections across exec and its relatives. Makes (or, hot_restart, accepts) connections and
echoes; prints "good" at the end. Run again by itself as `exec_ways.py continue FD`, `exec_ways.py generation ...`.
"""

import ctypes
import fcntl
import os
import select
import socket
import subprocess
import sys

from duplex import FIRST, LIMIT, begun, dial, echo_blocking, echo_epoll, must_be_kernel, must_be_offloaded
from listening import served, served_at

ME = [sys.executable, "-B", os.path.abspath(__file__)]
libc = ctypes.CDLL(None, use_errno=True)


def to_peer(ip, port):
    s = dial(ip, port)
    s.settimeout(None)
    return s


def in_place(ip, port):
    """The program becomes itself, with the connection under the same number."""
    s = begun(ip, port)
    os.set_inheritable(s.fileno(), True)
    os.execv(ME[0], ME + ["continue", str(s.fileno())])


def continued(fd):
    s = socket.socket(fileno=int(fd))
    must_be_kernel(s)
    echo_blocking(s)
    s.close()
    print("good", flush=True)


def fails(ip, port):
    """exec of what cannot be run: the program goes on."""
    s = begun(ip, port)
    for path in ("/no/such/file", "/dev/null", "/etc/hostname"):
        try:
            os.execv(path, ["x"])
        except OSError:
            pass
    echo_epoll(s, FIRST)
    try:
        os.execvp("no-such-program", ["x"])
    except OSError:
        pass
    echo_blocking(s)
    s.close()
    with begun(ip, port) as again:  # new connections are as before
        echo_blocking(again)
    print("good", flush=True)


def closes(ip, port, size):
    """CLOEXEC: exec is a close, and what was written is still delivered."""
    s = to_peer(ip, port)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * int(size))
    s.sendall(b"u" * int(size))
    must_be_offloaded(s)
    assert fcntl.fcntl(s, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.execv("/bin/echo", ["echo", "good"])


def forgotten(ip, port, size):
    """Closed with unsent data, then exec: the orphan is not lost."""
    s = to_peer(ip, port)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * int(size))
    s.sendall(b"u" * int(size))
    s.close()
    os.execv("/bin/echo", ["echo", "good"])


def passed_on(ip, port):
    """subprocess with pass_fds: a descriptor above 2 that the new program knows by its number."""
    s = begun(ip, port)
    done = subprocess.run(ME + ["continue", str(s.fileno())], pass_fds=[s.fileno()], timeout=2 * LIMIT,
                          stdout=subprocess.PIPE)
    assert done.returncode == 0 and done.stdout == b"good\n", done
    s.close()
    print("good", flush=True)


def by_system(ip, port):
    """system() with the connection as standard input and output, popen() with it as standard input."""
    s = begun(ip, port)
    saved = os.dup(1)
    os.dup2(s.fileno(), 0)
    os.dup2(s.fileno(), 1)
    must_be_kernel(s)
    assert libc.system(b"head -c 50000") == 0
    os.dup2(saved, 1)
    with os.popen("head -c 50000 | wc -c") as out:
        assert out.read() == "50000\n"
    s.sendall(b"z" * 50000)
    os.close(0)
    s.close()
    print("good", flush=True)


def hot_restart(ip, port, generations):
    """A server that replaces itself: listener and connection stay, their numbers are in the environment."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((ip, int(port)))
    listener.listen(16)
    served(listener)
    print("ready", flush=True)
    live, _ = listener.accept()
    echo_blocking(live, FIRST)
    must_be_offloaded(live)
    next_generation(listener, live, int(generations))


def next_generation(listener, live, left):
    for s in (listener, live):
        os.set_inheritable(s.fileno(), True)
    os.environ.update(LISTEN_FD=str(listener.fileno()), LIVE_FD=str(live.fileno()), LEFT=str(left - 1))
    os.execv(ME[0], ME + ["generation"])


def generation():
    listener = socket.socket(fileno=int(os.environ["LISTEN_FD"]))
    live = socket.socket(fileno=int(os.environ["LIVE_FD"]))
    print("generation", os.environ["LEFT"], flush=True)
    fresh, _ = listener.accept()
    echo_blocking(fresh)
    fresh.close()
    echo_blocking(live, FIRST)
    if int(os.environ["LEFT"]) > 0:
        next_generation(listener, live, int(os.environ["LEFT"]))
    echo_blocking(live)
    live.close()
    print("good", flush=True)


def waiting(ip, port):
    """A server that replaces itself while connections wait to be accepted."""
    listener = served_at(ip, port)
    print("ready", flush=True)
    sys.stdin.readline()
    os.set_inheritable(listener.fileno(), True)
    os.environ["LISTEN_FD"] = str(listener.fileno())
    try:
        os.execv("/etc/hostname", ["x"])
    except OSError:
        pass
    os.execv(ME[0], ME + ["found_waiting"])


def found_waiting():
    assert not [name for name in os.environ if name.startswith("LIBVMA")], os.environ
    listener = socket.socket(fileno=int(os.environ["LISTEN_FD"]))
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    for _ in range(3):
        assert poll.poll(LIMIT)
        s, _ = listener.accept()
        echo_blocking(s)
        s.close()
    print("good", flush=True)


def crowd(ip, port, count):
    """A server with many live connections runs commands: they stay where they are. Tells its pid, waits for a line."""
    listener = served_at(ip, port, backlog=256)
    print("ready", flush=True)
    members = [listener.accept()[0] for _ in range(int(count))]
    for s in members:
        # As a C server has them: open in every program that it starts.
        os.set_inheritable(s.fileno(), True)
        s.sendall(s.recv(100))
    for _ in range(3):
        assert libc.system(b"exit 3") >> 8 == 3
        assert subprocess.run(["true"]).returncode == 0
        with os.popen("echo out") as out:
            assert out.read() == "out\n"
        assert os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1] == 0
    print("commands done", os.getpid(), flush=True)
    sys.stdin.readline()
    for s in members:
        s.sendall(s.recv(100))
        s.close()
    print("good", flush=True)


if __name__ == "__main__":
    {f.__name__: f for f in (in_place, fails, closes, forgotten, passed_on, by_system, hot_restart, generation, waiting, found_waiting, crowd)}.get(
        sys.argv[1], continued)(*sys.argv[2:])
