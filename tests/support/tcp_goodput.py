"""tcp_goodput.py: one timed transfer over TCP; every byte is checked by the receiver, after the clock has stopped.

    tcp_goodput.py serve IP PORT BYTES SEED [CONGESTION]      the other end, for any number of transfers, until it is killed
    tcp_goodput.py up IP PORT BYTES SEED [CONGESTION]         connects and sends
    tcp_goodput.py down IP PORT BYTES SEED [CONGESTION]       connects and receives
    tcp_goodput.py flow IP PORT SECONDS SEED [CONGESTION]     connects and sends as much as it can for so long

The transfer ends when the connecting end has seen the end of stream. CONGESTION: TCP_CONGESTION, wanted and checked. A
line "result {json}" from each end: seconds from the connect() on; stall, the longest time in which the receiver got nothing;
tcp, some of TCP_INFO's numbers. "flow" prints "at SECOND BYTES" about ten times a second, with the bytes acknowledged.
"""

import fcntl
import json
import random
import select
import socket
import struct
import sys
import time

from listening import served, served_at

TIMEOUT = 300
SIOCOUTQ = 0x5411
PIECE = 1 << 16
# struct tcp_info of linux/tcp.h: name, format, offset
INFO = {"rto_us": ("I", 8), "rtt_us": ("I", 68), "ssthresh": ("I", 76), "cwnd": ("I", 80), "reordering": ("I", 88),
        "retransmits": ("I", 100), "segs_out": ("I", 136), "busy_us": ("Q", 168), "rwnd_limited_us": ("Q", 176),
        "sndbuf_limited_us": ("Q", 184), "dsack_dups": ("I", 216), "reord_seen": ("I", 220)}


def info(s):
    raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232).ljust(232, b"\0")
    return {name: struct.unpack_from(kind, raw, at)[0] for name, (kind, at) in INFO.items()}


def text(seed, size):
    return random.Random(seed).randbytes(size)


def prepare(s, congestion):
    if congestion:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        got = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        if got != congestion:
            sys.exit(f"congestion control is {got}")


def send(s, data):
    view = memoryview(data)
    for at in range(0, len(data), PIECE):
        s.sendall(view[at:at + PIECE])
    s.shutdown(socket.SHUT_WR)


def receive(s, data, begin):
    """The longest time without news."""
    pieces, stall, last = [], 0.0, begin
    while True:
        piece = s.recv(PIECE)
        now = time.monotonic()
        stall, last = max(stall, now - last), now
        if not piece:
            break
        pieces.append(piece)
    if b"".join(pieces) != data:
        sys.exit(f"{sum(map(len, pieces))} bytes of {len(data)}, or other ones")
    return stall


def tell(**result):
    sys.stdout.write("result " + json.dumps(result) + "\n")
    sys.stdout.flush()


def serve(ip, port, data, congestion):
    listener = socket.create_server((ip, port))
    prepare(listener, congestion)
    served(listener)
    print("ready", flush=True)
    while True:
        s, _ = listener.accept()
        s.settimeout(TIMEOUT)
        begin = time.monotonic()
        what = s.recv(1)
        if what == b"u":
            stall = receive(s, data, begin)
            tell(stall=round(stall, 4), tcp=info(s))
        elif what == b"d":
            send(s, data)
            s.recv(1)  # the peer has everything
            tell(tcp=info(s))
        else:
            try:
                while s.recv(PIECE):
                    pass
            except ConnectionResetError:  # how a flow ends
                pass
        s.close()


def warm_up(ip):
    """The library opens its ring with the first listener: that is not what is timed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((ip, 9))
        mine = s.getsockname()[0]
    served_at(mine, 0).close()


def connect(what, ip, port, data, congestion):
    warm_up(ip)
    s = socket.socket()
    prepare(s, congestion)
    s.settimeout(TIMEOUT)
    begin = time.monotonic()
    s.connect((ip, port))
    s.sendall(what[:1].encode())
    if what == "up":
        send(s, data)
        if s.recv(1) != b"":
            sys.exit("bytes where none were sent")
        tell(seconds=round(time.monotonic() - begin, 4), tcp=info(s))
        s.close()
        return
    stall = receive(s, data, time.monotonic())
    tell(seconds=round(time.monotonic() - begin, 4), stall=round(stall, 4), tcp=info(s))
    s.shutdown(socket.SHUT_WR)
    end = time.monotonic() + TIMEOUT
    while struct.unpack("i", fcntl.ioctl(s, SIOCOUTQ, b"\0\0\0\0"))[0] and time.monotonic() < end:
        select.select([], [], [], 0.005)  # so that the end of this process leaves nothing to the kernel


def flow(ip, port, seconds, seed, congestion):
    s = socket.socket()
    prepare(s, congestion)
    s.connect((ip, port))
    s.setblocking(False)
    data, sent, begin, told = text(seed, PIECE), 0, time.monotonic(), 0.0
    while (now := time.monotonic() - begin) < seconds:
        if select.select([], [s], [], 0.1)[1]:
            sent += s.send(data)
        if now - told >= 0.1:
            told = now
            waiting = struct.unpack("i", fcntl.ioctl(s, SIOCOUTQ, b"\0\0\0\0"))[0]
            sys.stdout.write(f"at {time.monotonic():.3f} {sent - waiting}\n")
            sys.stdout.flush()
    tell(tcp=info(s))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def main():
    what, ip, port, size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    congestion = sys.argv[6] if len(sys.argv) > 6 else ""
    if what == "flow":
        flow(ip, port, float(size), seed, congestion)
    elif what == "serve":
        serve(ip, port, text(seed, int(size)), congestion)
    else:
        connect(what, ip, port, text(seed, int(size)), congestion)


main()
