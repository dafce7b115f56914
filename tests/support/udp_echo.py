"""udp_echo.py IP PORT [--child keep|close] [--via recvmsg|recvfrom] [--stamps]: a UDP echo server.

Prints "ready PID". Answers from the address that was asked (IP_PKTINFO) with the TOS of the question, as a QUIC or NTP
server bound to ANY does. --child forks a process that keeps or closes its copy of the socket and sleeps; "go" on
standard input makes a keeping child serve. --stamps: prints "stamp SECONDS" of the kernel's receive time (SO_TIMESTAMPNS).
"""

import argparse
import os
import socket
import struct
import sys

IP_PKTINFO, SO_TIMESTAMPNS = 8, 35


def serve(s, via, stamps):
    while True:
        if via == "recvfrom":
            data, peer = s.recvfrom(65536)
            s.sendto(data, peer)
            continue
        data, ancillary, _, peer = s.recvmsg(65536, 512)
        answer = []
        for level, kind, value in ancillary:
            if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
                index, _, asked = struct.unpack("=I4s4s", value[:12])
                answer.append((level, kind, struct.pack("=I4s4s", index, asked, b"\0" * 4)))
            elif (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
                answer.append((level, kind, struct.pack("=i", value[0])))
            elif (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and stamps:
                print("stamp %.9f" % (struct.unpack("=qq", value)[0] + struct.unpack("=qq", value)[1] / 1e9), flush=True)
        s.sendmsg([data], answer, 0, peer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ip")
    parser.add_argument("port", type=int)
    parser.add_argument("--child", choices=["keep", "close"])
    parser.add_argument("--via", choices=["recvmsg", "recvfrom"], default="recvmsg")
    parser.add_argument("--stamps", action="store_true")
    options = parser.parse_args()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if options.via == "recvmsg":
        s.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        s.setsockopt(socket.IPPROTO_IP, 13, 1)  # IP_RECVTOS
    if options.stamps:
        s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    s.bind((options.ip, options.port))
    if options.child and os.fork() == 0:
        if options.child == "close":
            s.close()
        if sys.stdin.readline().strip() == "go":
            serve(s, options.via, options.stamps)
        os._exit(0)
    print("ready", os.getpid(), flush=True)
    serve(s, options.via, options.stamps)


main()
