"""udp_paced.py HOW IP PORT RATE COUNT SIZE: sends COUNT datagrams that begin with their number, at RATE bytes/s, and closes.

HOW: block; poll (does not wait for room in the call, but polls for it); leave (as block, but does not close). Prints a JSON line:
seconds that the sending took, how often there was no room, and what had not left by then. Ends when a line comes on standard input.
"""

import fcntl
import json
import select
import socket
import struct
import sys
import time

SO_MAX_PACING_RATE, SIOCOUTQ = 47, 0x5411
how, ip, port, rate, count, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", rate))
s.connect((ip, port))
s.setblocking(how != "poll")
text = bytes(size)
full = 0
begin = time.monotonic()
for n in range(count):
    while True:
        try:
            s.send(b"%d " % n + text[len(str(n)) + 1:])
            break
        except BlockingIOError:
            full += 1
            if not select.select([], [s], [], 20)[1]:
                sys.exit("no room in 20 s")
told = {"seconds": time.monotonic() - begin, "full": full}
told["unsent"] = struct.unpack("=i", fcntl.ioctl(s, SIOCOUTQ, bytes(4)))[0]
if how != "leave":
    s.close()
print(json.dumps(told), flush=True)
sys.stdin.readline()
