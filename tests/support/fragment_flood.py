"""fragment_flood.py SOURCE TARGET PORT SECONDS SEED: fragments that never make a datagram, from a hundred addresses of SOURCE's /24,
as fast as they go; prints "flooding" when it does, and how many at the end."""

import random
import socket
import struct
import sys
import time

source, target, port, seconds, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
rng = random.Random(seed)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)


def fragment(number, offset, more, body):
    """The kernel fills in the length and the checksum."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, number & 0xffff, (0x2000 if more else 0) | offset // 8, 64, socket.IPPROTO_UDP, 0,
                       socket.inet_aton(f"{source.rpartition('.')[0]}.{100 + (number >> 16)}"), socket.inet_aton(target))
    return head + body


first = struct.pack("!HHHH", 5000, port, 4000, 0) + bytes(1392)
frames = []
for i in range(5000):
    kind = rng.randrange(4)
    number = rng.randrange(100 << 16)  # the sender, and the id
    if kind in (0, 3):
        frames.append(fragment(number, 0, True, first))
    if kind == 1:
        frames.append(fragment(number, 8 * rng.randrange(1, 500), rng.random() < 0.7, bytes(8 * rng.randrange(1, 170))))
    elif kind == 2:  # tiny
        frames.append(fragment(number, 0, True, first[:8]))
    elif kind == 3:  # overlaps the one before
        frames.append(fragment(number, 696, True, bytes(1400)))


def burst():
    """How many went."""
    sent = 0
    begin = rng.randrange(len(frames) - 500)
    for frame in frames[begin:begin + 500]:
        try:
            raw.sendto(frame, (target, 0))
            sent += 1
        except OSError:
            pass  # the device's queue is full
    return sent


total = burst()
print("flooding", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    total += burst()
print("fragments", total)
