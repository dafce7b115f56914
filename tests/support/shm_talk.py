"""Two ends of a connection on one host, for test_shm.py.

    shm_talk.py serve|call ADDRESS PORT echo COUNT SIZE   COUNT messages there and back
    ... fork server|client COUNT   that end forks half way: its child goes on, the parent closes
    ... exec server|client COUNT   that end executes itself anew half way, with the connection as descriptor 0
    ... pass server|client COUNT   that end gives the connection half way to another program, which is not preloaded
    ... die server|client COUNT    that end is killed after COUNT messages; the other reads all of them, then the end

Every message has its number; both ends check that each comes once and in order.
"""

import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys

LIMIT = 20


def exactly(s, n):
    parts, left = [], n
    while left:
        part = s.recv(left)
        if not part:
            raise EOFError(f"{left} of {n} bytes are missing")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def message(number, size):
    block = hashlib.sha256(struct.pack(">Q", number)).digest()
    return (struct.pack(">Q", number) + block * (size // len(block) + 1))[:size]


def answer(s, numbers, size):
    for i in numbers:
        got = exactly(s, size)
        assert got == message(i, size), (i, got[:16])
        s.sendall(got)


def ask(s, numbers, size):
    for i in numbers:
        s.sendall(message(i, size))
        got = exactly(s, size)
        assert got == message(i, size), (i, got[:16])


def end(s):
    """Nothing more comes: the end, or a reset."""
    try:
        assert s.recv(1000) == b""
    except ConnectionResetError:
        pass


def killed(s, who, role, count):
    """One side dies right after it has written one more message: that still arrives."""
    (ask if role == "client" else answer)(s, range(count), 100)
    if who == role:
        s.sendall(message(count, 100))
        os.kill(os.getpid(), signal.SIGKILL)
    assert exactly(s, 100) == message(count, 100)
    end(s)


def given_away(s, role, address, port, count):
    """To a program that the library is not in, by SCM_RIGHTS; it goes on, and this end has closed."""
    ours, theirs = socket.socketpair()
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    other = subprocess.Popen([sys.executable, "-B", __file__, role, address, port, "given", str(count)], env=plain,
                             stdin=theirs)
    theirs.close()
    socket.send_fds(ours, [b"s"], [s.fileno()])
    s.close()
    assert other.wait(LIMIT) == 0


def main():
    role, address, port, mode, *words = sys.argv[1:]
    role = {"serve": "server", "call": "client"}.get(role, role)
    if mode == "rest":
        s = socket.socket(fileno=0)
    elif mode == "given":
        s = socket.socket(fileno=socket.recv_fds(socket.socket(fileno=0), 1, 1)[1][0])
    elif role == "server":
        with socket.create_server((address, int(port))) as listener:
            print("ready", flush=True)
            listener.settimeout(LIMIT)
            s = listener.accept()[0]
    else:
        s = socket.create_connection((address, int(port)), timeout=LIMIT)
    s.settimeout(None)
    work = answer if role == "server" else ask
    if mode == "echo":
        count, size = map(int, words)
        work(s, range(count), size)
    elif mode in ("rest", "given"):
        work(s, range(int(words[0]) // 2, int(words[0])), 100)
    elif mode == "die":
        killed(s, words[0], role, int(words[1]))
    else:
        who, count = words[0], int(words[1])
        if who != role:
            work(s, range(count), 100)
        elif mode == "exec":
            work(s, range(count // 2), 100)
            os.dup2(s.fileno(), 0)
            os.execv(sys.executable, [sys.executable, "-B", __file__, role, address, port, "rest", str(count)])
        elif mode == "pass":
            work(s, range(count // 2), 100)
            given_away(s, role, address, port, count)
        else:
            work(s, range(count // 2), 100)
            child = os.fork()
            if child == 0:
                work(s, range(count // 2, count), 100)
                os._exit(0)
            s.close()
            status = os.waitpid(child, 0)[1]
            assert status == 0, status
    signal.alarm(0)


signal.alarm(LIMIT)
main()
