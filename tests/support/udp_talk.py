"""udp_talk.py quic|ntp IP PORT COUNT [--connected] [--tos N]: a client of udp_echo.py; one JSON line of what it saw.

quic: windows of 16 datagrams of 1350 B, each with a number and a checksum, lost ones sent again after 200 ms. ntp:
48-byte questions one at a time through select, the answer must carry the question's time. Exit 1 when not all came back.
"""

import argparse
import json
import random
import select
import socket
import struct
import sys
import time
import zlib

IP_PKTINFO = 8
WINDOW = 16


def quic_datagram(number, rng):
    body = rng.randbytes(1350 - 8)
    return struct.pack("!II", number, zlib.crc32(body)) + body


def receive(s, seen):
    data, ancillary, flags, peer = s.recvmsg(65536, 512)
    for level, kind, value in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            seen["to"].add(socket.inet_ntoa(value[8:12]))
            seen["interfaces"].add(socket.if_indextoname(struct.unpack("=I", value[:4])[0]))
        elif (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
            seen["tos"].add(value[0])
    seen["from"].add(peer[0])
    seen["truncated"] += bool(flags & socket.MSG_TRUNC)
    return data


def quic(s, send, count, seen):
    rng = random.Random(count)
    waiting, sent_at, number, spoiled = {}, {}, 0, 0
    end = time.monotonic() + 20
    while (number < count or waiting) and time.monotonic() < end:
        while number < count and len(waiting) < WINDOW:
            waiting[number] = quic_datagram(number, rng)
            send(waiting[number])
            sent_at[number] = time.monotonic()
            number += 1
        if select.select([s], [], [], 0.2)[0]:
            data = receive(s, seen)
            which, crc = struct.unpack("!II", data[:8])
            spoiled += zlib.crc32(data[8:]) != crc or len(data) != 1350
            waiting.pop(which, None)
        for which, data in waiting.items():
            if time.monotonic() - sent_at[which] > 0.2:
                seen["repeated"] += 1
                send(data)
                sent_at[which] = time.monotonic()
    return number - len(waiting), spoiled


def ntp(s, send, count, seen):
    good = spoiled = 0
    for i in range(count):
        question = struct.pack("!B39xII", 0x23, i, random.getrandbits(32))
        for _ in range(5):
            send(question)
            if select.select([s], [], [], 0.5)[0]:
                spoiled += receive(s, seen)[40:48] != question[40:48]
                good += 1
                break
            seen["repeated"] += 1
    return good, spoiled


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["quic", "ntp"])
    parser.add_argument("ip")
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--connected", action="store_true")
    parser.add_argument("--tos", type=int, default=0)
    options = parser.parse_args()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    s.setsockopt(socket.IPPROTO_IP, 13, 1)  # IP_RECVTOS
    where = (options.ip, options.port)
    ancillary = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", options.tos))] if options.tos else []
    if options.connected:
        s.connect(where)

    def send(data):
        s.sendmsg([data[:100], data[100:]], ancillary, 0, *([] if options.connected else [where]))

    seen = {"to": set(), "from": set(), "interfaces": set(), "tos": set(), "truncated": 0, "repeated": 0}
    good, spoiled = (quic if options.kind == "quic" else ntp)(s, send, options.count, seen)
    print(json.dumps({"good": good, "spoiled": spoiled,
                      **{k: sorted(v) if isinstance(v, set) else v for k, v in seen.items()}}))
    sys.exit(0 if good == options.count and spoiled == 0 else 1)


main()
