"""memcached_udp.py IP PORT COUNT: what one TCP connection stores is read back by UDP, from several sockets. Ends with "good"."""

import random
import socket
import struct
import sys

import duplex
from memcached_load import Client


def ask(s, number, request):
    """One request; its answer's datagrams in the order that their headers give."""
    s.send(struct.pack(">HHHH", number, 0, 1, 0) + request)
    parts, total = {}, 1
    while len(parts) < total:
        piece = s.recv(65536)
        got, index, total, _ = struct.unpack(">HHHH", piece[:8])
        if got == number:
            parts[index] = piece[8:]
    return b"".join(parts[i] for i in range(total))


def main():
    ip, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(5)
    c = Client(ip, port)
    sockets = []
    for _ in range(8):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.settimeout(duplex.LIMIT)
        s.connect((ip, port))
        sockets.append(s)
    for i in range(count):
        value = rng.randbytes(rng.choice((1, 100, 1200, 5000)))
        c.set(b"u%d" % (i % 20), value)
        answer = ask(sockets[i % 8], i & 0xFFFF, b"get u%d\r\n" % (i % 20))
        assert answer == b"VALUE u%d 0 %d\r\n%s\r\nEND\r\n" % (i % 20, len(value), value), (i, answer[:60])
    print("good", flush=True)


if __name__ == "__main__":
    main()
