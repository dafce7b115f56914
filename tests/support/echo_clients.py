"""echo_clients.py IP PORT CONNECTIONS BYTES SEED: exchanges with an echo server, twenty at a time. Ends with "good"."""

import concurrent.futures
import sys

import duplex


def one(seed):
    with duplex.dial(ip, port) as s:
        duplex.exchange(s, seed, size)


ip, port, connections, size, seed = sys.argv[1], *map(int, sys.argv[2:6])
with concurrent.futures.ThreadPoolExecutor(20) as crowd:
    for done in [crowd.submit(one, seed + i) for i in range(connections)]:
        done.result(3 * duplex.LIMIT)
print("good", flush=True)
