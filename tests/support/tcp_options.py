"""One end of a small TCP conversation, with the options that tests/e2e/test_tcp_options.py is about. Prints what it saw."""

import os
import select
import socket
import struct
import sys
import time

from listening import served

FASTOPEN, FASTOPEN_CONNECT, DEFER_ACCEPT, INFO, NOTSENT_LOWAT, CC_INFO = 23, 30, 9, 11, 25, 26


def info(s):
    """The fields of Linux's tcp_info that a conversation determines."""
    raw = s.getsockopt(socket.IPPROTO_TCP, INFO, 512)
    bytes_acked, bytes_received = struct.unpack_from("QQ", raw, 120)
    bytes_sent, bytes_retrans = struct.unpack_from("QQ", raw, 200)
    return {"len": len(raw), "state": raw[0], "syn_data": bool(raw[5] & 32), "sack": bool(raw[5] & 2),
            "acked": bytes_acked, "received": bytes_received, "sent": bytes_sent, "retrans": bytes_retrans,
            "snd_wnd": struct.unpack_from("I", raw, 228)[0], "min_rtt": struct.unpack_from("I", raw, 148)[0],
            "pacing": struct.unpack_from("Q", raw, 104)[0], "reordering": struct.unpack_from("I", raw, 88)[0]}


def show(name, s):
    i = info(s)
    print(name, *(f"{k}={v}" for k, v in i.items()), flush=True)


def receive_all(s):
    parts = []
    while data := s.recv(65536):
        parts.append(data)
    return b"".join(parts)


def serve(ip, port, count, queue):
    """Accepts so many connections, answers each with what it sent."""
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if queue:
        l.setsockopt(socket.IPPROTO_TCP, FASTOPEN, queue)
    l.bind((ip, port))
    l.listen(16)
    l.settimeout(60)
    print("ready", flush=True)
    for _ in range(count):
        c, _ = l.accept()
        data = receive_all(c)
        c.sendall(data)
        show("server", c)
        c.close()


def client(ip, port, ways):
    """A conversation for each way: plain, send (MSG_FASTOPEN), connect (TCP_FASTOPEN_CONNECT), nonblocking."""
    for n, way in enumerate(ways.split(",")):
        text = bytes(f"{n} {way} ", "ascii") * 100
        s = socket.socket()
        s.settimeout(None)
        sent = 0
        if way == "plain":
            s.connect((ip, port))
        elif way == "send":
            sent = s.sendto(text, socket.MSG_FASTOPEN, (ip, port))
        elif way == "connect":
            s.setsockopt(socket.IPPROTO_TCP, FASTOPEN_CONNECT, 1)
            s.connect((ip, port))
        elif way == "nonblocking":
            s.setblocking(False)
            try:
                sent = s.sendto(text, socket.MSG_FASTOPEN, (ip, port))
            except BlockingIOError:
                print("in progress", flush=True)
            s.setblocking(True)
            while s.getsockopt(socket.IPPROTO_TCP, INFO, 1) == b"\x02":  # SYN_SENT
                time.sleep(0.001)
        s.sendall(text[sent:])
        s.shutdown(socket.SHUT_WR)
        if receive_all(s) != text:
            sys.exit(f"{way}: other bytes came back")
        show(f"client {way}", s)
        s.close()


def deferred(ip, port):
    """A listener with TCP_DEFER_ACCEPT: is a connection without text acceptable, and one with?"""
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.setsockopt(socket.IPPROTO_TCP, DEFER_ACCEPT, 5)
    l.bind((ip, port))
    l.listen(16)
    served(l).setblocking(False)
    print("ready", flush=True)
    while True:
        try:
            c, _ = l.accept()
            break
        except BlockingIOError:
            time.sleep(0.005)
    c.setblocking(False)
    print("accepted with", c.recv(100).decode(), flush=True)


def silent(ip, port):
    """Connects, says nothing until told."""
    s = socket.create_connection((ip, port), timeout=20)
    print("connected", flush=True)
    sys.stdin.readline()
    s.sendall(b"text")
    time.sleep(0.5)


def sink(ip, port, count):
    """Accepts connections and reads nothing until a line comes."""
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((ip, port))
    l.listen(64)
    l.settimeout(60)
    print("ready", flush=True)
    taken = [l.accept()[0] for _ in range(count)]
    print("accepted", flush=True)
    sys.stdin.readline()
    total = 0
    while taken:
        for c in select.select(taken, [], [])[0]:
            data = c.recv(1 << 20)
            total += len(data)
            if not data:
                taken.remove(c)
    print("read", total, flush=True)


def flood(ip, port, count, size):
    """Writes `size` bytes to each of so many connections at once, as far as each takes them."""
    sockets = [socket.create_connection((ip, port), timeout=20) for _ in range(count)]
    left = {s: size for s in sockets}
    piece = b"x" * 65536
    for s in sockets:
        s.setblocking(False)
    quiet = 0
    said = False
    while left:
        moved = 0
        for s in list(left):
            try:
                n = s.send(piece[:left[s]])
            except BlockingIOError:
                continue
            moved += n
            left[s] -= n
            if left[s] == 0:
                del left[s]
                s.shutdown(socket.SHUT_WR)
        quiet = 0 if moved else quiet + 1
        if quiet > 100 and not said:
            said = True
            print("stuck with", sum(left.values()), flush=True)
        if not moved:
            time.sleep(0.01)
    print("written", flush=True)
    for s in sockets:
        s.setblocking(True)
        if s.recv(1):
            sys.exit("text came")


def main():
    what, ip, port, *rest = sys.argv[1:]
    numbers = [int(r) if r.isdigit() else r for r in rest]
    {"serve": serve, "client": client, "deferred": deferred, "silent": silent, "sink": sink,
     "flood": flood}[what](ip, int(port), *numbers)
    os._exit(0)


main()
