"""tcp_idle.py: many connections that do nothing.

    tcp_idle.py serve IP PORT           accepts and echoes; every line on standard input is answered by a state line; the
                                        listeners on the next two ports have queues of 65535 and nobody who accepts
    tcp_idle.py connect IP PORT FROM N  N connections from the address FROM; "open N SECONDS" when all are; then a number on
                                        standard input: so many of them, spread evenly, say something and want it back

State lines: "state {json}": connections accepted so far and open now, resident set in KiB (with the part that is shared
memory), seconds between the first and the last accept. The caller sets the descriptor limit before the program starts,
because the library looks at it then.
"""

import json
import os
import select
import socket
import sys
import time

from listening import served


def state(count, opened, first, last):
    sizes = {}
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(("VmRSS", "RssShmem", "RssAnon")):
                sizes[line.split(":")[0]] = int(line.split()[1])
    sys.stdout.write("state " + json.dumps({"count": count, "open": opened, "rss": sizes["VmRSS"], "anon": sizes["RssAnon"],
                                            "shared": sizes["RssShmem"], "seconds": round(last - first, 3)}) + "\n")
    sys.stdout.flush()


def serve(ip, port):
    listeners = [socket.create_server((ip, port + i), backlog=65535) for i in range(3)]
    listener = listeners[0]
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN)
    count = opened = 0
    first = last = 0.0
    for each in listeners:
        served(each).setblocking(False)
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                try:
                    while True:
                        s, _ = listener.accept()
                        s.setblocking(False)
                        poll.register(s.detach(), select.EPOLLIN)  # the number is enough, and small
                        count, opened, last = count + 1, opened + 1, time.monotonic()
                        first = first or last
                except BlockingIOError:
                    pass
            elif fd == sys.stdin.fileno():
                if not sys.stdin.readline():
                    return
                state(count, opened, first, last)
            else:
                data = os.read(fd, 4096)
                if data:
                    os.write(fd, data)
                else:
                    os.close(fd)
                    opened -= 1


def connect(ip, port, source, n):
    begin = time.monotonic()
    fds, waiting, poll = [], set(), select.epoll()
    while len(fds) < n or waiting:
        while len(fds) < n and len(waiting) < 500:
            s = socket.socket()
            s.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            s.bind((source, 0))
            s.setblocking(False)
            s.connect_ex((ip, port))
            fds.append(s.detach())
            waiting.add(fds[-1])
            poll.register(fds[-1], select.EPOLLOUT)
        for fd, event in poll.poll(30):
            if event & (select.EPOLLERR | select.EPOLLHUP):
                sys.exit(f"connection {len(fds)} failed")
            poll.unregister(fd)
            waiting.remove(fd)
    print("open", n, round(time.monotonic() - begin, 3), flush=True)
    for line in sys.stdin:
        k = int(line)
        for i in range(k):
            fd = fds[i * n // k]
            os.set_blocking(fd, True)
            text = b"connection %d" % i
            os.write(fd, text)
            got = os.read(fd, 100)
            if got != text:
                sys.exit(f"{text} came back as {got}")
        print("talked", k, flush=True)


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    connect(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
