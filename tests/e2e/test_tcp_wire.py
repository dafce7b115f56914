"""TCP through a bad wire (tests/support/forwarder.cc): loss, reordering, duplicates, corruption and delay; every byte is
compared, both ways, with a kernel peer at either end and with ours at both.

The Kernel class runs the same on the kernel alone: what fails there is the wire's or the test's.
"""

import itertools
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from bad_wire import BadWire
import case

ENDS = {"both": (True, True), "client": (True, False), "server": (False, True)}
BAD = {"loss": 1, "reorder": 2, "duplicate": 1, "corrupt": 0.1, "delay_us": 20000}
HARMS = {"loss": "lost", "reorder": "reordered", "duplicate": "duplicated", "corrupt": "corrupted"}
MEGABYTE = 1 << 20
ports = itertools.count(7500)  # a run that failed may still hold its own


class Stream(BadWire):
    def stream(self, mode, size, ends, harm, seed=None, timeout=120):
        client, server = ends
        port = next(ports)
        seed = random.randrange(1 << 31) if seed is None else seed
        print(f"{mode} {size} bytes, preloaded client {client} server {server}, seed {seed}", flush=True)
        wire = self.wire(seed=seed, **harm)
        before = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}
        serve = self.python(self.b, "tcp_stream.py", "serve", self.b.ip, port, mode, size, seed, preload=server,
                            start=True, cpu=1)
        serve.expect("ready")
        done = self.python(self.a, "tcp_stream.py", "connect", self.b.ip, port, mode, size, seed, preload=client,
                           timeout=timeout, cpu=0)
        self.assert_ok(done)
        self.assertEqual(serve.wait(timeout), 0, serve.out)
        self.assertIn(f"done {size}", done.out)
        self.assertIn(f"done {size}", serve.out)
        after = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}
        counts = self.counts(wire)
        print(f"  {done.seconds:.1f} s, wire {counts}", flush=True)
        for cause, effect in HARMS.items():
            if harm.get(cause) and counts["seen"] * harm[cause] / 100 > 12:  # the wire did what this is about
                self.assertGreater(counts[effect], 0, counts)
        for space, preloaded in ((self.a, client), (self.b, server)):
            seen = after[space] - before[space]
            if preloaded and not mode.startswith("exit"):  # at exit the kernel takes over what is not acknowledged
                self.assertLess(seen, case.SLACK, f"the kernel of {space.letter} saw {seen} segments")
            elif not preloaded:
                self.assertGreater(seen, size // 65536, f"the kernel of {space.letter} saw only {seen} segments")

    def each(self, ends, modes, size, harm):
        for name, pair in ends.items():
            for mode in modes:
                with self.subTest(ends=name, mode=mode):
                    self.stream(mode, size, pair, harm)


class Smoke(Stream):
    def test_clean(self):
        self.each(ENDS, ("both",), 4 * MEGABYTE, {})

    def test_bad(self):
        self.each({"both": (True, True)}, ("both",), MEGABYTE // 2, BAD)

    def test_exit(self):
        self.each({"client": (True, False)}, ("exit",), MEGABYTE, {"loss": 5})


class Bad(Stream):
    def test_every_byte(self):
        self.each(ENDS, ("up", "down", "both"), 2 * MEGABYTE, BAD)

    def test_exit_at_once(self):
        self.each({k: v for k, v in ENDS.items() if v[0]}, ("exit",), 16 * MEGABYTE, {"loss": 5})
        self.each({k: v for k, v in ENDS.items() if v[1]}, ("exitdown",), 16 * MEGABYTE, {"loss": 5})


class Kernel(Stream):
    def test_every_byte(self):
        self.each({"kernel": (False, False)}, ("up", "down", "both"), 2 * MEGABYTE, BAD)

    def test_exit_at_once(self):
        self.each({"kernel": (False, False)}, ("exit",), 16 * MEGABYTE, {"loss": 5})


if __name__ == "__main__":
    del Stream, BadWire
    case.main()
