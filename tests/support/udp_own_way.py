"""udp_own_way.py CASE IP PORT: a program that meets an obstacle and goes on; its output is the same on the kernel and
preloaded. Cases: echo (serve two datagrams), taken (bind to a port in use, then another), foreign (bind to an address that
is not here, then ANY), loopback (talk to itself over lo), move (echo one, unshare the network namespace, echo one more)."""

import ctypes
import errno
import os
import socket
import sys

case, ip, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    return s


def bind(s, where):
    try:
        s.bind(where)
        return "bound"
    except OSError as error:
        return errno.errorcode[error.errno]


def echo(s):
    data, peer = s.recvfrom(2048)
    s.sendto(data, peer)
    print("echoed", data.decode(), flush=True)


s = udp()
if case == "loopback":
    print(bind(s, ("127.0.0.1", port)), flush=True)
    s.sendto(b"self", ("127.0.0.1", port))
    print(s.recv(100).decode(), flush=True)
    try:
        s.connect(("198.51.100.1", 9))
        print("connected", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    sys.exit(0)
if case == "taken":
    print(bind(s, (ip, port + 1)), flush=True)
if case == "foreign":
    print(bind(s, ("198.51.100.9", port)), flush=True)
print(bind(s, (("0.0.0.0" if case == "foreign" else ip), port)), flush=True)
echo(s)
if case == "move":
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    inside = udp()
    print("inside", bind(inside, (ip, 0)), bind(inside, ("0.0.0.0", 0)), flush=True)
echo(s)
