"""tcp_churn.py: connections that come and go.

    tcp_churn.py serve IP PORT              accepts and echoes until standard input ends; every line there is answered by its
                                            own state
    tcp_churn.py connect IP PORT SECONDS N  opens N connections, talks on each, closes all, again and again for so long; in
                                            every second round the serving end closes first

State lines: "state {json}": connections so far, open descriptors, resident set in KiB, seconds. The connecting end prints one
about every second; the serving one when asked.
"""

import json
import os
import resource
import select
import socket
import sys
import time

begin = time.monotonic()
count = 0


def descriptors():
    return len(os.listdir("/proc/self/fd")) - 1


def state():
    with open("/proc/self/statm") as f:
        resident = int(f.read().split()[1]) * resource.getpagesize() // 1024
    line = {"count": count, "fds": descriptors(), "rss": resident, "seconds": round(time.monotonic() - begin, 2)}
    print("state " + json.dumps(line), flush=True)


def serve(ip, port):
    global count
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    listener = socket.create_server((ip, port), backlog=2048)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN)
    peers = {}
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                try:
                    while True:
                        s, _ = listener.accept()
                        peers[s.fileno()] = s
                        poll.register(s, select.EPOLLIN)
                        count += 1
                except BlockingIOError:
                    pass
            elif fd == sys.stdin.fileno():
                if not sys.stdin.readline():
                    return
                state()
            else:
                s = peers[fd]
                data = s.recv(4096)
                if data:
                    s.sendall(data)
                if not data or data.endswith(b"last"):
                    poll.unregister(s)
                    del peers[fd]
                    s.close()


def talk(ip, port, n, text, to_the_end):
    peers = []
    for _ in range(n):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.settimeout(10)
        s.connect((ip, port))
        peers.append(s)
    for s in peers:
        s.sendall(text)
    for s in peers:
        got = b""
        while len(got) < len(text):
            piece = s.recv(4096)
            if not piece:
                sys.exit(f"end of stream after {len(got)} bytes")
            got += piece
        if got != text:
            sys.exit("other bytes than sent")
        if to_the_end and s.recv(1) != b"":
            sys.exit("bytes where none were sent")
    for s in peers:
        s.close()


def connect(ip, port, seconds, n):
    global count
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    for _ in range(3):  # what a first use and a first sleep make for good is there after this
        talk(ip, port, 20, b"last", True)
    select.select([], [], [], 0.5)
    state()
    told, rounds, fds = 0.0, 0, descriptors()
    while time.monotonic() - begin < seconds:
        rounds += 1
        talk(ip, port, n, b"x" * 500 + (b"last" if rounds % 2 == 0 else b"more"), rounds % 2 == 0)
        count += n
        if time.monotonic() - begin - told >= 1:
            told = time.monotonic() - begin
            state()
    end = time.monotonic() + 10
    while descriptors() > fds + 1 and time.monotonic() < end:  # what closes in the background
        select.select([], [], [], 0.01)
    state()


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    connect(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
