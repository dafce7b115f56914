"""dns_server.py IP: authoritative DNS over UDP port 53 for everything: A is 10.1.2.3 (web.test: IP itself), TXT is 1200
bytes of text, other types are empty. Prints "ready". For the end-to-end tests' dig, curl and resolver."""

import socket
import struct
import sys

ip = sys.argv[1]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((ip, 53))
print("ready", flush=True)
while True:
    query, peer = s.recvfrom(4096)
    if len(query) < 17:
        continue
    end = 12
    while query[end]:
        end += query[end] + 1
    name, kind = query[12:end + 1], struct.unpack("!H", query[end + 1:end + 3])[0]
    address = socket.inet_aton(ip if name == b"\x03web\x04test\x00" else "10.1.2.3")
    data = {1: address, 16: b"".join(bytes([240]) + b"t" * 240 for _ in range(5))}.get(kind)
    answer = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data if data else b""
    header = query[:2] + b"\x85\x80" + struct.pack("!HHHH", 1, 1 if data else 0, 0, 0)
    s.sendto(header + query[12:end + 5] + answer, peer)
