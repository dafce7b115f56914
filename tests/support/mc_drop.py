"""mc_drop.py ADDRESS GROUP GROUP PORT: is in the first group, gives up root when told so, joins the second; prints what comes.

Lines on standard input: "drop", "join", "end"; every datagram is one line "got TEXT".
"""

import os
import select
import socket
import sys

address, first, second, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", port))


def join(group):
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(address))


join(first)
print("ready", flush=True)
while True:
    readable, _, _ = select.select([s, sys.stdin], [], [], 60)
    if not readable:
        sys.exit(3)
    if s in readable:
        print("got", s.recv(100).decode(), flush=True)
    if sys.stdin in readable:
        word = sys.stdin.readline().strip()
        if word == "drop":
            os.setgid(65534)
            os.setuid(65534)
        elif word == "join":
            join(second)
        else:
            sys.exit(0)
        print("did", word, flush=True)
