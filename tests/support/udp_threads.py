"""udp_threads.py IP FIRST COUNT: COUNT threads, each asleep in recvfrom() on a socket of its own (ports from FIRST on), answer what
comes. A datagram "end" ends its thread."""

import os
import socket
import sys
import threading


def answer(s):
    data = b""
    while data != b"end":
        data, peer = s.recvfrom(100)
        s.sendto(data, peer)


ip, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
for i, each in enumerate(sockets):
    each.bind((ip, first + i))
threads = [threading.Thread(target=answer, args=(each,)) for each in sockets]
for thread in threads:
    thread.start()
print("ready", os.getpid(), *(thread.native_id for thread in threads), flush=True)
for thread in threads:
    thread.join()
