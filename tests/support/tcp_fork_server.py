"""TCP echo servers around fork: `child` serves each connection in a forked child, `both` reads the first half in the parent and
the rest in the child, `system` runs commands while connections are open.  argv: kind address port connections"""

import os
import socket
import subprocess
import sys


def echo(connection):
    while True:
        data = connection.recv(65536)
        if not data:
            return
        connection.sendall(data)


kind, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen(64)
print("ready", flush=True)
children = []
for _ in range(count):
    connection, _peer = listener.accept()
    if kind == "system":
        first = connection.recv(1000)
        assert subprocess.run(["true"]).returncode == 0
        assert os.system("exit 3") >> 8 == 3
        connection.sendall(first)
        echo(connection)
        connection.close()
        continue
    if kind == "both":
        connection.sendall(connection.recv(1000))
    pid = os.fork()
    if pid == 0:
        listener.close()
        echo(connection)
        connection.close()
        os._exit(0)
    connection.close()
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
print("done", flush=True)
