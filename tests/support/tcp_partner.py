"""tcp_partner.py IP PORT: the other end of tcp_talk.py, always on the kernel. Each connection tells in its first 16 bytes what
it wants; "report ..." connections print one line "report {json}" of what was received and how the connection ended.
"""

import errno
import json
import socket
import struct
import sys
import threading
import time

LIMIT = 10


def rest(s, report):
    """Reads until the end; how many bytes, and the end: "eof" or an error's name."""
    total = 0
    try:
        while piece := s.recv(65536):
            total += len(piece)
        report["end"] = "eof"
    except OSError as error:
        report["end"] = "timeout" if error.errno is None else errno.errorcode[error.errno]
    report["bytes"] = total


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def dial(peer, port, hello=True):
    s = socket.create_connection((peer, port), LIMIT)
    if hello:
        s.sendall(b"dialled")
    return s


def serve(s, peer):
    s.settimeout(LIMIT)
    words = s.recv(16, socket.MSG_WAITALL).decode().split()
    what = words[0] if words else ""
    if what == "echo":
        while piece := s.recv(65536):
            s.sendall(piece)
    elif what == "hello":
        s.sendall(b"hello world")
        s.recv(1)
        s.sendall(b"more")
        while s.recv(65536):
            pass
    elif what == "hellorst":
        s.sendall(b"hello world")
        time.sleep(0.05)
        reset(s)
    elif what == "idle":
        threading.Event().wait(LIMIT)  # reads nothing
    elif what == "echoeof":
        text = b""
        while piece := s.recv(65536):
            text += piece
        s.sendall(text + b" bye")
    elif what == "finfirst":
        s.shutdown(socket.SHUT_WR)
        report = {}
        rest(s, report)
        print("report " + json.dumps(report), flush=True)
    elif what == "reset":
        reset(s)
    elif what == "report":
        report = {}
        if "hello" in words:
            s.sendall(b"hello world")
        rest(s, report)
        print("report " + json.dumps(report), flush=True)
    elif what == "dial":
        with dial(peer, int(words[1])) as other:
            s.sendall(other.recv(100) or b"closed")
            while s.recv(1):
                pass
    elif what == "dials":
        others = [dial(peer, int(words[1])) for _ in range(int(words[2]))]
        s.recv(1)
        for other in others:
            other.close()
    elif what == "dialwait":
        try:
            with dial(peer, int(words[1]), hello=False) as other:
                other.recv(1)
                s.sendall(b"eof")
        except OSError as error:
            s.sendall(b"timeout" if error.errno is None else errno.errorcode[error.errno].encode())
    s.close()


def run(s, peer):
    try:
        serve(s, peer)
    except OSError as error:
        print("partner:", error, flush=True)


def main():
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
    print("ready", flush=True)
    while True:
        s, address = listener.accept()
        threading.Thread(target=run, args=(s, address[0]), daemon=True).start()


main()
