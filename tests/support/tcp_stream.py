"""tcp_stream.py: known bytes over TCP, checked at the other end.

    tcp_stream.py serve IP PORT MODE BYTES SEED [connections]     accepts, then plays its part
    tcp_stream.py connect IP PORT MODE BYTES SEED                 connects, then plays the other

MODE, seen from the connecting side: up (it sends), down (it receives), both (at the same time), exit (it sends and calls
exit(0) at once without closing), exitdown (the accepting side does). Text is a seeded pseudo-random stream, another one for each
direction; the receiver compares every byte and wants the end of stream behind the last. Writes and reads are of seeded
sizes. Prints "ready" when listening, "done BYTES" when all was as it should be; any difference is an error exit.
"""

import fcntl
import os
import random
import select
import socket
import struct
import sys
import threading
import time

TIMEOUT = 120
SIOCOUTQ = 0x5411


def text(seed, direction, size):
    return random.Random(f"{seed} {direction}").randbytes(size)


def send(s, seed, direction, size, finish=True):
    data, sizes, at = memoryview(text(seed, direction, size)), random.Random(seed), 0
    while at < size:
        piece = sizes.choice((1, 100, 1460, 4096, 65537, 1 << 20))
        s.sendall(data[at:at + piece])
        at += piece
    if finish:
        s.shutdown(socket.SHUT_WR)


def receive(s, seed, direction, size):
    data, sizes, at = text(seed, direction, size), random.Random(seed + 1), 0
    while True:
        piece = s.recv(sizes.choice((1000, 16384, 65536, 1 << 18)))
        if not piece:
            break
        if piece != data[at:at + len(piece)]:
            sys.exit(f"other bytes than sent somewhere in {at}..{at + len(piece)} of {size}")
        at += len(piece)
    if at != size:
        sys.exit(f"end of stream after {at} of {size} bytes")


def acknowledged(s):
    """Waits until the peer has acknowledged everything, so that the end of this process hands nothing to the kernel."""
    end = time.monotonic() + TIMEOUT
    while struct.unpack("i", fcntl.ioctl(s, SIOCOUTQ, b"\0\0\0\0"))[0] and time.monotonic() < end:
        select.select([], [], [], 0.005)


def play(s, mode, accepting, size, seed):
    s.settimeout(TIMEOUT)
    out, back = ("down", "up") if accepting else ("up", "down")
    if mode == "both":
        failures = []

        def run(function, direction):
            try:
                function(s, seed, direction, size)
            except BaseException as error:  # told by the main thread
                failures.append(error)

        threads = [threading.Thread(target=run, args=a) for a in ((send, out), (receive, back))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failures:
            raise failures[0]
    elif mode.startswith("exit"):
        if accepting == (mode == "exitdown"):
            s.settimeout(None)
            send(s, seed, out, size, finish=False)
            print("done", size, flush=True)
            sys.exit(0)  # with the socket open and most of it not even sent
        receive(s, seed, back, size)
    elif (mode == "up") != accepting:
        send(s, seed, out, size)
        if s.recv(1) != b"":  # the peer closes when it has everything
            sys.exit("bytes where none were sent")
    else:
        receive(s, seed, back, size)
    if not mode.startswith("exit"):
        acknowledged(s)
    print("done", size, flush=True)


def main():
    what, ip, port, mode, size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
    keep = []
    if what == "connect":
        keep.append(socket.create_connection((ip, port), TIMEOUT))
        play(keep[0], mode, False, size, seed)
        return
    listener = socket.create_server((ip, port))
    listener.setblocking(False)
    try:
        keep.append(listener.accept())  # a listener is served by the library from the first accept on
    except BlockingIOError:
        pass
    listener.settimeout(TIMEOUT)
    print("ready", os.getpid(), flush=True)
    s, _ = listener.accept()
    keep.append(s)
    play(s, mode, True, size, seed)
    s.close()


main()
