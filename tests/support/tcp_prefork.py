"""tcp_prefork.py IP PORT WORKERS: a listener, WORKERS forked processes that accept from it, echo until the peer closes.

Prints "worker PID" for each and "ready"; a worker prints "connection PID FD" for what it accepts. Ends with standard input.
"""

import os
import signal
import socket
import sys


def work(listener):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    open_connections = {}
    import selectors
    with selectors.DefaultSelector() as ready:  # epoll
        listener.setblocking(False)
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    try:
                        connection, _ = listener.accept()
                    except BlockingIOError:
                        continue  # another worker was faster
                    connection.setblocking(False)
                    open_connections[connection.fileno()] = connection
                    ready.register(connection, selectors.EVENT_READ)
                    print("connection", os.getpid(), connection.fileno(), flush=True)
                    continue
                connection = key.fileobj
                try:
                    data = connection.recv(65536)
                except BlockingIOError:
                    continue
                if data:
                    connection.send(data)
                    continue
                ready.unregister(connection)
                del open_connections[connection.fileno()]
                connection.close()


def main():
    ip, port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    listener = socket.create_server((ip, port), backlog=64)
    children = []
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            work(listener)
        children.append(child)
        print("worker", child, flush=True)
    print("ready", flush=True)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


main()
