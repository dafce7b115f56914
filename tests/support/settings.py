"""A program whose sockets show what a setting does, for test_settings.py. It does one thing, says so, and waits for the end of
its input."""

import ctypes
import socket
import sys


def connect(ip, port):
    s = socket.create_connection((ip, int(port)), timeout=10)
    for _ in range(5):
        s.getsockname()
    return s


def listen(ip, port):
    # With it the library has started, and has a statistics page, whatever becomes of the listener.
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((ip, int(port) + 1))
    s = socket.socket()
    s.bind((ip, int(port)))
    s.listen()
    return s, datagrams


def datagram(ip, port, size):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((ip, int(port)))
    s.send(b"first")  # by the kernel, which finds the neighbour
    if s.recv(10) != b"answer":
        sys.exit("no answer")
    s.send(bytes(int(size)))
    return s


def crash(ip, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, int(port)))
    print("about to crash", flush=True)
    ctypes.string_at(8)


sockets = {"connect": connect, "listen": listen, "datagram": datagram, "crash": crash}[sys.argv[1]](*sys.argv[2:])
print("ready", flush=True)
sys.stdin.read()
