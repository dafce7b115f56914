"""hw_stamps.py IP PORT COUNT: receives COUNT datagrams, with SO_TIMESTAMPING's stamps of the host and of the device; for each a
line "stamp HOST DEVICE", in nanoseconds, 0 for one that is not there, and "none" without the message."""

import socket
import struct
import sys

SO_TIMESTAMPING, RX_HARDWARE, RX_SOFTWARE, SOFTWARE, RAW_HARDWARE = 37, 1 << 2, 1 << 3, 1 << 4, 1 << 6

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_HARDWARE | RX_SOFTWARE | SOFTWARE | RAW_HARDWARE)
s.bind((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    _, controls, _, peer = s.recvmsg(100, 512)
    told = "none"
    for level, kind, value in controls:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
            parts = struct.unpack("=6q", value)
            told = "stamp %d %d" % (parts[0] * 10**9 + parts[1], parts[4] * 10**9 + parts[5])
    print(told, flush=True)
    s.sendto(b"seen", peer)
