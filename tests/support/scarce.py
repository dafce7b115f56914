"""An echo server with little.  argv: KIND IP PORT

descriptors  echoes PIECE bytes of a connection, takes every descriptor that it may have, echoes PIECE more, tries to accept another
             connection and to make a socket, gives one descriptor up, accepts it and echoes PIECE bytes of it.
memory N     accepts N connections, and reads none of them until a line comes on standard input; then echoes PIECE bytes of each
Each step is printed; the last is "good".
"""

import errno
import os
import socket
import sys

from duplex import echo_blocking

PIECE = 300_000


def say(*words):
    print(*words, flush=True)


def outcome(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def descriptors(listener):
    first, _ = listener.accept()
    echo_blocking(first, PIECE)
    taken = []
    while (fd := outcome(lambda: os.open("/dev/null", os.O_RDONLY))) != "EMFILE":
        taken.append(fd)
    say("full")
    echo_blocking(first, PIECE)
    say("accept", outcome(listener.accept), "socket", outcome(socket.socket))
    os.close(taken.pop())
    second, _ = listener.accept()
    say("accepted")
    echo_blocking(second, PIECE)
    echo_blocking(first, PIECE)


def memory(listener, count):
    connections = [listener.accept()[0] for _ in range(int(count))]
    say("accepted")
    sys.stdin.readline()
    for s in connections:
        echo_blocking(s, PIECE)


listener = socket.create_server((sys.argv[2], int(sys.argv[3])))
say("ready")
{"descriptors": descriptors, "memory": memory}[sys.argv[1]](listener, *sys.argv[4:])
say("good")
