#!/usr/bin/env python3
"""./dev demo: sockperf on the kernel and preloaded, in two namespaces joined by a veth pair, as one table.

Kernel and preloaded runs alternate; the ratio is the median of the ratios of the repeats. "both" preloads both ends,
"client" and "server" one of them against a kernel peer.
"""

import platform
import statistics
import sys
import time

from bench import cache_line_ns
from rows import ping_pong, throughput
from netns import Net, binary, library, preload_env

REPEATS = 3
# protocol, work, unit, is less better, how to measure it. The protocols are those that the library offloads.
ROWS = [
    ("UDP", "ping-pong 14 B, blocking, p50", "us", True, ping_pong("udp")),
    ("UDP", "ping-pong 14 B, spinning, p50", "us", True, ping_pong("udp", nonblocked=True)),
    ("UDP", "throughput 64 B, received", "msg/s", False, throughput("udp")),
    ("TCP", "ping-pong 14 B, blocking, p50", "us", True, ping_pong("tcp")),
    ("TCP", "ping-pong 14 B, spinning, p50", "us", True, ping_pong("tcp", nonblocked=True)),
    ("TCP", "throughput 64 B, received", "msg/s", False, throughput("tcp")),
]
SIDES = {"kernel": (False, False), "both": (True, True), "client": (True, False), "server": (False, True)}


def run_row(net, measure):
    """One measurement of each side per repeat; side -> samples. One-sided runs are made in the first repeat only."""
    samples = {side: [] for side in SIDES}
    for repeat in range(REPEATS):
        for side, (client, server) in SIDES.items():
            if side in ("client", "server") and repeat > 0:
                continue
            env = preload_env()
            samples[side].append(measure(net, env if client else None, env if server else None, 1))
    return samples


def figure(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def cell(samples, side):
    ours, kernel = samples[side], samples["kernel"]
    ratio = statistics.median(o.value / k.value for o, k in zip(ours, kernel))
    return f"{figure(statistics.median(s.value for s in ours))} ({ratio:.2f}x)"


def main():
    begin = time.monotonic()
    print(f"kernel {platform.release()}, {library()}, cache line between the cores {cache_line_ns():.0f} ns\n")
    print(f"{'':36} {'unit':6} {'kernel':>10} {'both ends':>20} {'client only':>20} {'server only':>20}")
    accelerated, proof = [], ""
    with Net("ab", congestion="cubic") as net:
        for protocol, work, unit, less, measure in ROWS:
            samples = run_row(net, measure)
            kernel = statistics.median(s.value for s in samples["kernel"])
            print(f"{protocol + ' ' + work:36} {unit:6} {figure(kernel):>10}" + "".join(f" {cell(samples, side):>20}" for side in ("both", "client", "server"))
                  + f"   {'less' if less else 'more'} is better", flush=True)
            accelerated += [s.accelerated for side in ("both", "server") for s in samples[side]]
            proof = samples["both"][-1].note or proof
    print(f"\n(Nx) is preloaded/kernel of the same repeat, median of {REPEATS}; one-ended runs once. "
          f"{time.monotonic() - begin:.0f} s; the namespaces are removed.")
    yes = sum(map(bool, accelerated))
    print(f"Accelerated: {yes} of {len(accelerated)} runs with a preloaded server (last throughput run: {proof}).")
    try:
        print(f"See it on your own program: ./dev run PROGRAM, and beside it {binary('vma_stats')} explain")
    except FileNotFoundError:
        print("See it on your own program: ./dev run PROGRAM; InDatagrams in /proc/net/snmp stands still meanwhile.")
    return 0 if yes == len(accelerated) else 1


if __name__ == "__main__":
    sys.exit(main())
