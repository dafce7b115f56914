"""Two of our CUBIC flows and one of the kernel's share a bottleneck (tests/support/forwarder.cc: 20 ms, drop-tail): each gets
its third, within a fifth of it, in a minute after a warm-up. Three kernel flows show what the kernel does to itself.

    test_tcp_kernel_fairness.py Full       prints the lines of docs/evidence
"""

import itertools
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from bad_wire import BadWire
import case

RTT = {"delay_us": 10000}
KERNEL = {"kernel 1": False, "kernel 2": False, "kernel 3": False}
MIXED = {"ours 1": True, "ours 2": True, "kernel": False}
ports = itertools.count(7300)


class Shared(BadWire):
    def share(self, flows, rate_kbit, queue, warm_up, seconds, seed=1):
        """{flow: its part of what all got in the window}."""
        port = next(ports)
        wire = self.wire(seed=seed, rate_kbit=rate_kbit, queue=queue, **RTT)
        servers, starts = [], []
        for number, (name, ours) in enumerate(flows.items()):
            serve = self.python(self.b, "tcp_goodput.py", "serve", self.b.ip, port + number * 20, 1, seed, "cubic", start=True)
            serve.expect("ready")
            servers.append(serve)
        for number, (name, ours) in enumerate(flows.items()):
            starts.append(self.python(self.a, "tcp_goodput.py", "flow", self.b.ip, port + number * 20, warm_up + seconds, seed,
                                      "cubic", preload=ours, start=True))
        got = {}
        for name, flow in zip(flows, starts):
            self.assertEqual(flow.wait(warm_up + seconds + 30), 0, flow.out)
            got[name] = [(float(t), int(n)) for t, n in re.findall(r"(?m)^at (\S+) (\d+)$", flow.out)]
        counts = self.counts(wire)
        for serve in servers:
            serve.kill()
        begin = max(points[0][0] for points in got.values()) + warm_up
        end = min(points[-1][0] for points in got.values())
        self.assertGreater(end - begin, 0.9 * seconds)
        bytes_of = {}
        for name, points in got.items():
            inside = [p for p in points if begin <= p[0] <= end]
            bytes_of[name] = inside[-1][1] - inside[0][1]
        total = sum(bytes_of.values())
        parts = {name: n * len(flows) / total for name, n in bytes_of.items()}
        print(f"{rate_kbit / 1000:g} Mbit/s, queue {queue >> 10} KiB, {end - begin:.0f} s: " +
              ", ".join(f"{name} {part:.2f}" for name, part in parts.items()) +
              f" of a fair part; together {total * 8e-6 / (end - begin):.1f} Mbit/s, {counts['overflowed']} dropped by the queue",
              flush=True)
        self.assertGreater(total * 8e-3 / (end - begin), 0.8 * rate_kbit)
        self.assertGreater(counts["overflowed"], 0, counts)
        return parts


class Smoke(Shared):
    def test_nobody_starves(self):
        for name, part in self.share(MIXED, 50000, 128 << 10, 2, 6).items():
            self.assertGreater(part, 0.3, name)


class Full(Shared):
    def test_fair(self):
        for rate, queue in ((20000, 64 << 10), (50000, 128 << 10), (100000, 256 << 10)):
            self.share(KERNEL, rate, queue, 10, 60)
            for name, part in self.share(MIXED, rate, queue, 10, 60).items():
                with self.subTest(rate=rate, flow=name):
                    self.assertGreaterEqual(part, 0.8)
                    self.assertLessEqual(part, 1.2)


if __name__ == "__main__":
    del Shared, BadWire
    case.main()
