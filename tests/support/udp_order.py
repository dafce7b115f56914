"""udp_order.py WAY PORT COUNT: a receiver of datagrams that begin with a number, bound to any address.

Prints "ready", and reads when a line comes on standard input: by then everything is queued. Prints the first number that is
not the one that was sent next, or "good". WAY: block, poll, spin (does not wait, asks until all are there).
"""

import select
import socket
import sys
import time

SO_RCVBUFFORCE = 33
way, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
s.bind(("0.0.0.0", port))
if way == "block":
    s.settimeout(None)
else:
    s.setblocking(False)
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + 20


def take():
    while time.monotonic() < end:
        if way == "poll":
            select.select([s], [], [], 10)
        try:
            return int(s.recv(65536).split(b" ")[0])
        except BlockingIOError:
            pass
    return "nothing"


for expected in range(count):
    if (number := take()) != expected:
        print(f"{number} in place of {expected}", flush=True)
        sys.exit(1)
print("good", flush=True)
