"""sockets.py: makes sockets as standard input says, one command a line, and answers each with one line on standard output.

  udp NAME [IP PORT]    a datagram socket, bound if told where; answers "NAME FD"
  send NAME IP PORT     one datagram; answers "sent NAME"
  join NAME GROUP IP    IP_ADD_MEMBERSHIP on the interface that has IP; answers "joined NAME"
  dontroute NAME        SO_DONTROUTE, which is only the kernel's; answers "unrouted NAME"
  chdir DIR             answers "chdir"

First it prints "ready PID". A call that fails is answered "failed ERRNO-NAME". It ends at the end of standard input.
"""

import errno
import os
import socket
import struct
import sys

sockets = {}


def obey(command, args):
    if command == "udp":
        name = args[0]
        sockets[name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if len(args) == 3:
            sockets[name].bind((args[1], int(args[2])))
        return f"{name} {sockets[name].fileno()}"
    if command == "send":
        sockets[args[0]].sendto(b"x", (args[1], int(args[2])))
        return f"sent {args[0]}"
    if command == "join":
        mreq = struct.pack("=4s4s", socket.inet_aton(args[1]), socket.inet_aton(args[2]))
        sockets[args[0]].setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, mreq)
        return f"joined {args[0]}"
    if command == "dontroute":
        sockets[args[0]].setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        return f"unrouted {args[0]}"
    os.chdir(args[0])
    return "chdir"


print(f"ready {os.getpid()}", flush=True)
for line in sys.stdin:
    command, *args = line.split()
    try:
        print(obey(command, args), flush=True)
    except OSError as error:
        print(f"failed {errno.errorcode[error.errno]}", flush=True)
