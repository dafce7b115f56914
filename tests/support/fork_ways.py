"""fork_ways.py IP PORT WAY/MODE...: for each way makes a connection to IP:PORT and echoes what comes, in parent and child as the
way says; MODE is how (duplex.ECHO). Prints "WAY/MODE good" for each. The way "parent_first" must be the last one.
"""

import ctypes
import os
import select
import socket
import subprocess
import sys
import threading

from duplex import ECHO, FIRST, LIMIT, dial, echo_by, ended, in_child, must_be_offloaded

echo_by_poll = ECHO["nonblocking"]
SIGCHLD = 17
libc = ctypes.CDLL(None, use_errno=True)


def handed_over(s, pid, work):
    """The child does the work; the parent closes its descriptor at once."""
    in_child(pid, work)
    s.close()
    ended(pid)


def child(s, echo):
    handed_over(s, os.fork(), lambda: echo(s))


def child_beside_holder(s, echo):
    """The parent keeps its descriptor and does not use it."""
    pid = in_child(os.fork(), lambda: echo(s))
    ended(pid)
    s.close()


def parent(s, echo):
    """The child holds the descriptor until the parent is done with it: only then does the peer see the end."""
    r, w = os.pipe()
    pid = in_child(os.fork(), lambda: (os.close(w), os.read(r, 1)))
    echo(s)
    s.close()
    os.close(w)
    ended(pid)


def turns(s, echo):
    """Parent, child, parent, child, each a part; the last one until the end."""
    to_child, from_child = os.pipe(), os.pipe()

    def work():
        for limit in (FIRST, None):
            assert os.read(to_child[0], 1) == b"x"
            echo(s, limit)
            os.write(from_child[1], b"x")

    pid = in_child(os.fork(), work)
    os.write(to_child[1], b"x")
    assert os.read(from_child[0], 1) == b"x"
    echo(s, FIRST)
    os.write(to_child[1], b"x")
    assert os.read(from_child[0], 1) == b"x"
    ended(pid)
    s.close()


def at_once(s, _):
    """The child reads the connection into a pipe, the parent writes it back: both use it all the time."""
    r, w = os.pipe()

    def work():
        os.close(r)
        while piece := s.recv(65536):
            while piece:
                piece = piece[os.write(w, piece):]

    s.setblocking(True)
    pid = in_child(os.fork(), work)
    os.close(w)
    while piece := os.read(r, 65536):
        s.sendall(piece)
    os.close(r)
    s.close()
    ended(pid)


def child_first(s, echo):
    ended(in_child(os.fork(), lambda: echo(s, FIRST)))
    echo(s)
    s.close()


def grandchild(s, echo):
    handed_over(s, os.fork(), lambda: child(s, echo))


def raw_clone(s, echo):
    pid = libc.syscall(56, SIGCHLD, 0, 0, 0, 0)
    assert pid >= 0
    handed_over(s, pid, lambda: echo(s))


def raw_clone3(s, echo):
    arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, SIGCHLD, 0, 0, 0)
    pid = libc.syscall(435, arguments, ctypes.sizeof(arguments))
    assert pid >= 0
    handed_over(s, pid, lambda: echo(s))


def command(s, _):
    """The socket as standard input and output of a program that is not ours."""
    s.setblocking(True)
    assert subprocess.run(["cat"], stdin=s, stdout=s, timeout=LIMIT, check=True)
    s.close()


def spawned(s, _):
    s.setblocking(True)
    pid = os.posix_spawn("/bin/cat", ["cat"], os.environ,
                         file_actions=[(os.POSIX_SPAWN_DUP2, s.fileno(), 0), (os.POSIX_SPAWN_DUP2, s.fileno(), 1)])
    s.close()
    ended(pid)


def by_daemon(s, echo, become):
    """become() returns true in the process that echoes, which is nobody's child: it tells by a pipe how it went."""
    r, w = os.pipe()

    def work():
        if become():
            echo(s)
            os.write(w, b"good")
            os._exit(0)

    handed_over(s, os.fork(), work)
    os.close(w)
    assert os.read(r, 10) == b"good"


def daemonised(s, echo):
    """The double fork of a daemon, a session leader in between."""
    def become():
        os.setsid()
        return os.fork() == 0

    by_daemon(s, echo, become)


def daemon_call(s, echo):
    """daemon(3): the process that calls ends in it, the call returns in its child."""
    by_daemon(s, echo, lambda: libc.daemon(0, 1) == 0)


def shared_epoll(s, _):
    """An epoll set made before the fork: first the parent's, then the child's, then the parent's again."""
    ep = select.epoll()
    ep.register(s, select.EPOLLIN)
    echo_by(ep, s, FIRST)
    ended(in_child(os.fork(), lambda: echo_by(ep, s, FIRST)))
    echo_by(ep, s)
    ep.close()
    s.close()


def waiting_parent(s, _):
    """The parent is asleep in epoll_wait for the connection when the child begins to use it; both then see what comes."""
    r, w = os.pipe()

    def work():
        os.read(r, 1)
        echo_by_poll(s, FIRST)

    pid = in_child(os.fork(), work)
    ep = select.epoll()
    ep.register(s, select.EPOLLHUP | select.EPOLLRDHUP)
    woken = []
    thread = threading.Thread(target=lambda: woken.extend(ep.poll(LIMIT)))
    thread.start()
    os.write(w, b"x")
    ended(pid)
    echo_by_poll(s)
    s.shutdown(socket.SHUT_WR)
    thread.join(LIMIT)
    assert woken, "the sleeper was not woken by the end of the connection"
    ep.close()
    s.close()


def parent_first(s, echo):
    r, w = os.pipe()
    if os.fork() == 0:
        os.close(w)
        os.read(r, 1)  # the parent is gone, or about to
        echo(s)
        print("good", flush=True)
        os._exit(0)
    os.close(r)


WAYS = [child, child_beside_holder, parent, turns, at_once, child_first, grandchild, raw_clone, raw_clone3, command, spawned,
        daemonised, daemon_call, shared_epoll, waiting_parent, parent_first]


def main():
    ip, port = sys.argv[1], int(sys.argv[2])
    ways = {way.__name__: way for way in WAYS}
    for name in sys.argv[3:]:
        way, mode = name.split("/")
        s = dial(ip, port)
        s.settimeout(None)
        ECHO[mode](s, FIRST)
        must_be_offloaded(s)
        ways[way](s, ECHO[mode])
        if way != "parent_first":
            print(name, "good", flush=True)


main()
