"""ring_pool.py IP PORT THREADS CONNECTIONS SEED: an echo server whose connections are served by a pool of threads. One thread waits by
epoll, one-shot, and gives each readable connection to a thread that SEED chooses, which reads and answers some times and arms it again.
Prints "listening", "0_0 FD" of the first connection and "ready PID"; ends at the end of standard input.
"""

import os
import queue
import random
import select
import socket
import sys
import threading


def main():
    ip, port, threads, count, seed = sys.argv[1], *map(int, sys.argv[2:])
    rng = random.Random(seed)
    listener = socket.create_server((ip, port))
    print("listening", flush=True)
    connections = {s.fileno(): s for s in (listener.accept()[0] for _ in range(count))}
    waits = select.epoll()
    work = [queue.SimpleQueue() for _ in range(threads)]

    def serve(mine):
        while True:
            fd, times = mine.get()
            for _ in range(times):
                try:
                    data = connections[fd].recv(1 << 16, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                if not data:
                    break
                connections[fd].sendall(data)
            waits.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    for mine in work:
        threading.Thread(target=serve, args=(mine,), daemon=True).start()

    def wait():
        while True:
            for fd, _ in waits.poll():
                rng.choice(work).put((fd, rng.randint(1, 30)))

    for fd in connections:
        waits.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
    threading.Thread(target=wait, daemon=True).start()
    print("0_0", min(connections), flush=True)
    print("ready", os.getpid(), flush=True)
    sys.stdin.read()


main()
