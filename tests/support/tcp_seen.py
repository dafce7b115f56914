"""tcp_seen.py IP PORT: a TCP echo server for viewers to look at: a listener on IP:PORT, one on 127.0.0.1, one connection.

Prints "listener FD", "loopback FD", "ready PID"; once somebody has connected "connection FD". Echoes until the peer closes,
then waits for the end of standard input.
"""

import contextlib
import os
import socket
import sys


def main():
    ip, port = sys.argv[1], int(sys.argv[2])
    listeners = {"listener": socket.create_server((ip, port)), "loopback": socket.create_server(("127.0.0.1", port))}
    listeners["listener"].setblocking(False)
    with contextlib.suppress(BlockingIOError):
        listeners["listener"].accept()  # a listener is served by the library from the first accept on
    listeners["listener"].setblocking(True)
    for name, s in listeners.items():
        print(name, s.fileno(), flush=True)
    print("ready", os.getpid(), flush=True)
    connection, _ = listeners["listener"].accept()
    print("connection", connection.fileno(), flush=True)
    while data := connection.recv(65536):
        connection.sendall(data)
    sys.stdin.read()


main()
