"""Unmodified redis-server and redis-benchmark: 50 clients, pipelines, values of a megabyte; preloaded at both ends and at each.
"""

import itertools
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import preload_env

ENDS = {"both": (True, True), "client": (True, False), "server": (False, True), "kernel": (False, False)}
SLACK = 300  # segments of connections that come before the server first polls its listener, or after it is closed
ports = itertools.count(6400)
RUNS = {
    "default tests": (["-c", "50", "-n", "2000"], 60000),
    "pipelined": (["-c", "50", "-n", "50000", "-P", "16", "-t", "set,get,incr,lpush"], 10000),
    "large values": (["-c", "10", "-n", "300", "-d", str(1 << 20), "-t", "set,get"], 500),
}


class Redis(case.NetCase):
    def redis(self, run, ends):
        options, least = RUNS[run]
        client, server = ends
        port = next(ports)
        quiet = preload_env(VMA_TRACELEVEL="warning")
        process = self.b.start(["redis-server", "--bind", self.b.ip, "--port", port, "--save", "", "--appendonly", "no",
                                "--protected-mode", "no"], env=quiet if server else None, cpu=1)
        self.b.wait_bound("tcp", port, process=process)
        process.expect("Ready to accept connections")
        before = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}
        done = self.a.run(["redis-benchmark", "-h", self.b.ip, "-p", port, "--csv", *options],
                          env=quiet if client else None, cpu=0, timeout=200)
        self.assert_ok(done)
        results = re.findall(r'(?m)^"([^"]+)","([0-9.]+)"', done.out)
        print(f"{run}, preloaded client {client} server {server}: "
              + ", ".join(f"{name.split(' (')[0]} {float(rate):.0f}" for name, rate in results), flush=True)
        self.assertGreaterEqual(len(results), options[-1].count(",") + 1 if "-t" in options else 15, done.out)
        for name, rate in results:
            self.assertGreater(float(rate), 0, (name, done.out))
        for word in ("ERR", "Error", "error"):
            self.assertNotIn(word, done.out)
        for space, preloaded in ((self.a, client), (self.b, server)):
            seen = space.counters("Tcp")["InSegs"] - before[space]
            if preloaded:
                self.assertLess(seen, SLACK, f"the kernel of {space.letter} saw {seen} segments")
            else:
                self.assertGreater(seen, least // 4, f"the kernel of {space.letter} saw only {seen} segments")
        process.stop()

    def each(self, runs, ends):
        for run in runs:
            for name in ends:
                with self.subTest(run=run, ends=name):
                    self.redis(run, ENDS[name])


class Smoke(Redis):
    def test_pipelined(self):
        self.each(("pipelined",), ("both", "server"))

    def test_large_values(self):
        self.each(("large values",), ("both",))


class Full(Redis):
    def test_all(self):
        self.each(RUNS, ENDS)


if __name__ == "__main__":
    del Redis
    case.main()
