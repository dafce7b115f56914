#!/usr/bin/env python3
"""The capacity of a multicast feed: 16 groups to 8 receivers each (tests/support/mc_feeds.py) at rising rates until the first loss,
by the kernel alone, with three quarters of the receivers and the sender preloaded, and so with a ring for each receiving thread.
The table is docs/evidence/8-feed.txt.

    feed.py [RATE,...] [kernel,ours,rings]     datagrams/s; 5 s each, more than the receivers' buffers hold
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import mc_feeds  # noqa: E402
from netns import Net  # noqa: E402

SECONDS = 5
PER_THREAD = {"VMA_RING_ALLOCATION_LOGIC_RX": 20, "VMA_RING_ALLOCATION_LOGIC_TX": 20}


def measure(net, rate, preload, variables):
    """(reached rate, datagrams that receivers missed, of how many)"""
    a, b = net["a"], net["b"]
    second = a.ip.rsplit(".", 1)[0] + ".201"
    subprocess.run(["ip", "-n", a.name, "addr", "replace", f"{second}/24", "dev", a.dev], check=True)
    b.sysctl("net.ipv4.igmp_max_memberships", 100)
    readers = list(mc_feeds.receivers(b, second, preload, **variables))
    done = mc_feeds.send(a, second, rate, rate * SECONDS, preload)
    if done.rc != 0:
        raise SystemExit(done.out)
    sent, missed, of = mc_feeds.expected(done.out, second), 0, 0
    for what, sockets, process in readers:
        got = mc_feeds.received(process.out) if process.wait(130) == 0 else []
        if len(got) != mc_feeds.GROUPS * sockets or any(unended for *_, unended in got):
            raise SystemExit(f"{what} receivers did not see the end:\n{process.out}")
        for group, n, total, _ in got:
            wanted = sent[group, "source" if what == "source" else "all"]
            if n == wanted[0] and total != wanted[1]:
                raise SystemExit(f"{what} receiver of group {group}: not what was sent")
            missed += wanted[0] - n
            of += wanted[0]
    return rate * SECONDS / mc_feeds.took(done.out), missed, of


def main():
    rates, sides = (sys.argv[1:] + ["", ""])[:2]
    with Net("ab") as net:
        for side in (sides or "kernel,ours,rings").split(","):
            for rate in map(int, (rates or "50000,75000,100000,125000,150000,200000,250000,300000").split(",")):
                reached, missed, of = measure(net, rate, side != "kernel", PER_THREAD if side == "rings" else {})
                print(f"{side:7} {rate:8} datagrams/s   reached {reached:8.0f}   missed {missed:8} of {of}", flush=True)
                if missed:
                    break


if __name__ == "__main__":
    main()
