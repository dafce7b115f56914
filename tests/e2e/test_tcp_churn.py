"""Connections opened, used and closed in a loop: descriptors and memory must stay what they were.

The slope is that of a straight line through the resident set of the last half of the run, over that half.
"""

import itertools
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually, preload_env

ENDS = {"both": (True, True), "client": (True, False), "server": (False, True), "kernel": (False, False)}
ports = itertools.count(7800)
QUIET = preload_env(VMA_TRACELEVEL="warning")


def states(text):
    return [json.loads(line) for line in re.findall(r"(?m)^state (.*)$", text)]


def slope(points):
    """Growth over the points, as a part of their mean: least squares."""
    n = len(points)
    mean_x, mean_y = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    per_x = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return per_x * (points[-1][0] - points[0][0]) / mean_y


class Churn(case.NetCase):
    def churn(self, ends, seconds, connections):
        client, server = ends
        port = next(ports)
        for space in (self.a, self.b):
            space.sysctl("net.core.somaxconn", 4096)
        serve = self.python(self.b, "tcp_churn.py", "serve", self.b.ip, port, start=True, stdin=subprocess.PIPE, cpu=1,
                            env=QUIET if server else None)
        serve.expect("ready")
        if server:
            self.b.wait_served(port, serve)  # else the first connection may be the kernel's, and the ring opened after it
        before = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}

        def ask():
            """The serving end's state, once it has seen all ends of connections."""
            have = len(states(serve.out))
            serve.stdin.write(b"\n")
            serve.stdin.flush()
            self.assertTrue(eventually(lambda: len(states(serve.out)) > have, 10), serve.out)
            return states(serve.out)[-1]

        with self.a.socket() as s:
            s.settimeout(5)
            s.connect((self.b.ip, port))
            s.sendall(b"last")
            while s.recv(100):
                pass
        self.assertTrue(eventually(lambda: ask()["count"] >= 1, 5), serve.out)
        first = ask()
        talk = self.python(self.a, "tcp_churn.py", "connect", self.b.ip, port, seconds, connections, start=True, cpu=0,
                           env=QUIET if client else None)
        seen = []
        while not eventually(lambda: not talk.running(), 1):
            seen.append(ask())
            self.assertLess(len(seen), seconds * 3 + 60, "does not end")
        self.assertEqual(talk.wait(5), 0, talk.out)
        mine = states(talk.out)
        print(f"  {mine[-1]['count'] / mine[-1]['seconds']:.0f} connections/s, first {mine[0]}, last {mine[-1]}, "
              f"server {ask()}", flush=True)
        self.assertGreaterEqual(mine[-1]["count"], 2 * connections)
        # Our own descriptors are made on first use: before the connecting end's first state, and here before `first`.
        # One more may come: the event descriptor of a thread's first long sleep.
        self.assertIn(mine[-1]["fds"] - mine[0]["fds"], (0, 1), mine)
        self.assertTrue(eventually(lambda: ask()["fds"] == first["fds"], 10), (first, seen[-1]))
        for space, preloaded in ((self.a, client), (self.b, server)):
            segments = space.counters("Tcp")["InSegs"] - before[space]
            if preloaded:
                # The last round's connections may be on their way out when the program ends.
                self.assertLess(segments, case.SLACK + 0.01 * mine[-1]["count"] + 2 * connections,
                                f"the kernel of {space.letter}")
            else:
                self.assertGreater(segments, mine[-1]["count"], f"the kernel of {space.letter}")
        return mine, seen

    def steady(self, name, points):
        half = [(p["seconds"], p["rss"]) for p in points if p["seconds"] >= points[-1]["seconds"] / 2]
        self.assertGreater(len(half), 5, points)
        growth = slope(half)
        print(f"  {name}: resident set grows {growth:+.3%} over the last half", flush=True)
        self.assertLess(growth, 0.01, half)


class Smoke(Churn):
    def test_short(self):
        for name in ("both", "client", "server"):
            with self.subTest(ends=name):
                self.churn(ENDS[name], 3, 200)


class Minute(Churn):
    def test_minute(self):
        # A kernel client has 28 000 ports, each of them a minute in TIME_WAIT otherwise.
        self.a.sysctl("net.ipv4.tcp_tw_reuse", 1)
        for name, ends in ENDS.items():
            with self.subTest(ends=name):
                print(name, flush=True)
                # A minute until as many records leave TIME_WAIT as enter it, and a minute that is looked at.
                mine, seen = self.churn(ends, 120, 1000)
                self.steady("connecting end", mine)
                self.steady("serving end", seen)


if __name__ == "__main__":
    del Churn
    case.main()
