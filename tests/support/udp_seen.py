"""udp_seen.py IP PORT: a UDP echo server on IP:PORT that holds other sockets, too, for viewers to tell apart.

Prints "ready PID" and then, for each, "name FD": echo (IP:PORT), loopback (127.0.0.1), unused (never bound), group (a
member of 239.5.5.5 that sends from IP and not to this host), six (AF_INET6).
Ends at the end of standard input. Datagram "fork": a child that ends at once by itself is made first.
"""

import os
import select
import socket
import sys


def main():
    ip, port = sys.argv[1], int(sys.argv[2])
    sockets = {
        "echo": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "loopback": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "unused": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "group": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "six": socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    }
    sockets["echo"].bind((ip, port))
    sockets["loopback"].bind(("127.0.0.1", port))
    sockets["group"].bind(("0.0.0.0", port + 1))
    sockets["group"].setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.5.5.5") + socket.inet_aton(ip))
    sockets["group"].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
    sockets["group"].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    for name, s in sockets.items():
        print(name, s.fileno(), flush=True)
    print("ready", os.getpid(), flush=True)
    while True:
        readable, _, _ = select.select([sockets["echo"], sys.stdin], [], [])
        if sys.stdin in readable:
            return
        data, peer = sockets["echo"].recvfrom(65536)
        if data == b"fork" and os.fork() == 0:
            os._exit(0)
        sockets["echo"].sendto(data, peer)


main()
