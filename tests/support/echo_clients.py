"""echo_clients.py IP PORT CONNECTIONS BYTES SEED: exchanges with an echo server, twenty at a time. Ends with "good". Streams of more
than SHORT bytes are ended when all is back, the others by a half-close."""

import concurrent.futures
import sys

import duplex

SHORT = 8000  # what a proxy has room for: haproxy 2.6 may end both directions when one is half-closed and the other is full


def one(number):
    with duplex.dial(ip, port) as s:
        duplex.exchange(s, seed + number, size, half_close=size <= SHORT)


ip, port, connections, size, seed = sys.argv[1], *map(int, sys.argv[2:6])
with concurrent.futures.ThreadPoolExecutor(20) as crowd:
    for done in [crowd.submit(one, number) for number in range(connections)]:
        done.result(3 * duplex.LIMIT)
print("good", flush=True)
