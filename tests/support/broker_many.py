"""Accepts connections, greets each and never closes one.  argv: address port connections"""

import select
import socket
import sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen(512)
select.select([listener], [], [], 0)  # from now on it is served by the ring
print("ready", flush=True)
kept = []
for number in range(count):
    connection, _peer = listener.accept()
    connection.sendall(b"hello %d" % number)
    kept.append(connection)
print("accepted", count, flush=True)
select.select([], [], [])
