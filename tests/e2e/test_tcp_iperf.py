"""Unmodified iperf3 over TCP: directions, parallel streams, small and odd writes, a small window, zero copy; preloaded at
both ends and at each alone, and on the kernel alone.

The oracle: the kernel's count of received segments in a namespace moves exactly where the end is not preloaded.
"""

import itertools
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import preload_env

ENDS = {"both": (True, True), "client": (True, False), "server": (False, True)}
RUNS = {
    "plain": [],
    "reverse": ["-R"],
    "parallel": ["-P", "8"],
    "parallel reverse": ["-P", "8", "-R"],
    "both ways": ["--bidir"],
    "one byte": ["-l", "1"],
    "odd size": ["-l", "65537"],
    "odd size reverse": ["-l", "65537", "-R"],
    "small window": ["-w", "64k"],
    "small window reverse": ["-w", "64k", "-R"],
    "zero copy": ["-Z"],
    "zero copy reverse": ["-Z", "-R"],
}
SLACK = 100  # segments: what up to nine connections still have to say when their process ends is the kernel's
ports = itertools.count(5201)  # a run that failed may still hold its own


class Iperf(case.NetCase):
    def one(self, options, ends, seconds=1):
        client, server = ends
        port = next(ports)
        serve = self.b.start(["iperf3", "-4", "-s", "-1", "-p", port], env=preload_env() if server else None, cpu=1)
        self.b.wait_bound("tcp", port, process=serve)
        if server:
            self.b.wait_served(port, serve)
        before = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}
        done = self.a.run(["iperf3", "-c", self.b.ip, "-p", port, "-t", seconds, "-J", *options],
                          env=preload_env() if client else None, cpu=0, timeout=seconds + 30)
        self.assert_ok(done)
        self.assertEqual(serve.wait(10), 0, serve.out)
        end = json.loads(done.out[done.out.index("{"):])["end"]
        self.assertIn("sum_received", end, done.out)
        received = end["sum_received"]["bytes"] + end.get("sum_received_bidir_reverse", {}).get("bytes", 0)
        print(f"{' '.join(options) or 'plain'}: preloaded client {client} server {server}: "
              f"{end['sum_received']['bits_per_second'] / 1e9:.2f} Gbit/s", flush=True)
        self.assertGreater(end["sum_received"]["bytes"], 20000 if "1" in options else 1 << 20, done.out)
        if "--bidir" in options:
            self.assertGreater(end["sum_received_bidir_reverse"]["bytes"], 1 << 20, done.out)
        least = received // (1 << 20)  # segments there must be at least: super-frames of 64 KiB and their acknowledgements
        for space, preloaded in ((self.a, client), (self.b, server)):
            seen = space.counters("Tcp")["InSegs"] - before[space]
            if preloaded:
                self.assertLess(seen, SLACK, f"the kernel of {space.letter} saw {seen} segments")
            else:
                self.assertGreater(seen, least, f"the kernel of {space.letter} saw only {seen} segments")
        return end

    def each(self, runs, ends, seconds=1):
        for run in runs:
            for name, pair in ends.items():
                with self.subTest(run=run, ends=name):
                    self.one(RUNS[run], pair, seconds)


class Smoke(Iperf):
    def test_plain(self):
        self.each(("plain",), ENDS)

    def test_choice(self):
        self.each(("reverse", "parallel", "zero copy"), {"both": (True, True)})


class Full(Iperf):
    def test_all(self):
        self.each(RUNS, ENDS, seconds=2)


class Kernel(Iperf):
    def test_all(self):
        self.each(RUNS, {"kernel": (False, False)})


if __name__ == "__main__":
    del Iperf
    case.main()
