"""soak_client.py SECONDS SEED THREADS WAYS IP:PORT...: connections to soak_server.py, every byte compared. WAYS: the letters that
each server understands, one word for each, with commas. Prints how many of each were made; 0 when all were right.
"""

import collections
import random
import socket
import sys
import threading
import time

from duplex import FIRST, LIMIT, exchange, pattern

seconds, seed, threads = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
servers = [(where.rsplit(":", 1), ways) for where, ways in zip(sys.argv[5:], sys.argv[4].split(","))]
deadline = time.monotonic() + seconds
counts, wrong = collections.Counter(), []


def reset_by_peer(s, n):
    """The peer resets in the middle: what came before must be right."""
    s.settimeout(LIMIT)
    data, back = pattern(n, 5 * FIRST), bytearray()
    try:
        s.sendall(data)
        while piece := s.recv(65536):
            back += piece
    except ConnectionError:
        pass
    assert data.startswith(back), f"{len(back)} bytes before the reset are wrong"


def work(number):
    rng = random.Random(seed * 1000 + number)
    while time.monotonic() < deadline and not wrong:
        (ip, port), ways = rng.choice(servers)
        way = rng.choice(ways)
        size = rng.choice((10, 5000, 60000, 300000))
        try:
            with socket.create_connection((ip, int(port)), LIMIT) as s:
                s.sendall(way.encode())
                if way == "r":
                    reset_by_peer(s, number)
                else:
                    exchange(s, number, size)
        except (OSError, AssertionError) as error:
            wrong.append(f"way {way} to port {port}, {size} bytes: {error!r}")
        counts[way] += 1


crowd = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
for thread in crowd:
    thread.start()
for thread in crowd:
    thread.join()
print("made", " ".join(f"{way}={n}" for way, n in sorted(counts.items())), flush=True)
print("\n".join(wrong), flush=True)
sys.exit(bool(wrong))
