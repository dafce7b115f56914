"""A TCP server that gets killed, or gives its privileges up.  argv: kind address port

unsent  writes as much as the socket takes and says how much; then sleeps
child   forks a child that shares the connection and sleeps; the child echoes once standard input says so
both    the same, after the parent has echoed the first bytes and left some unread and some unsent
drop    becomes nobody after listen(); serves one connection by a forked child, then connects back to where that came from
wait    tells what wait() finds while a broker runs
exec    leaves a connection that closes on exec
"""

import errno
import os
import select
import socket
import sys


def pattern(n, seed=0):
    block = bytes((i * 31 + (i >> 8) + seed) & 0xff for i in range(1 << 16))
    return (block * (n // len(block) + 1))[:n]


def echo(connection):
    while True:
        data = connection.recv(65536)
        if not data:
            return
        connection.sendall(data)


def fill(connection):
    """Writes a pattern until nothing fits for a while; how many bytes."""
    connection.setblocking(False)
    data, sent = pattern(8 << 20), 0
    while sent < len(data):
        try:
            sent += connection.send(data[sent:sent + 65536])
        except BlockingIOError:
            if not select.select([], [connection], [], 0.3)[1]:
                break
    connection.setblocking(True)
    return sent


def become_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen(64)
if kind == "drop":
    become_nobody()
select.select([listener], [], [], 0)  # from now on it is served by the ring
print("ready", flush=True)
connection, peer = listener.accept()
if kind == "unsent":
    print("written", fill(connection), flush=True)
    select.select([], [], [])
elif kind == "exec":
    written = fill(connection)
    print("written", written, flush=True)
    os.execv("/bin/sleep", ["sleep", "60"])
elif kind in ("child", "both"):
    if kind == "both":
        connection.sendall(connection.recv(1000))
        # The child must find what the peer sends now, and the peer what is still to be sent.
        print("written", fill(connection), flush=True)
        assert len(connection.recv(5000, socket.MSG_PEEK | socket.MSG_WAITALL)) == 5000
    pid = os.fork()
    if pid == 0:
        print("forked", os.getpid(), flush=True)
        sys.stdin.readline()
        echo(connection)
        connection.close()
        print("done", flush=True)
        os._exit(0)
    select.select([], [], [])
elif kind == "drop":
    connection.recv(1, socket.MSG_PEEK)
    pid = os.fork()
    if pid == 0:
        echo(connection)
        connection.close()
        os._exit(0)
    connection.close()
    assert os.waitpid(pid, 0)[1] == 0
    back = socket.create_connection((peer[0], port + 1), timeout=10)
    print("connected", flush=True)
    echo(back)
    print("done", flush=True)
elif kind == "wait":
    try:
        os.waitpid(-1, os.WNOHANG)
        print("a child", flush=True)
    except OSError as error:
        print("none" if error.errno == errno.ECHILD else error, flush=True)
    echo(connection)
    print("done", flush=True)
