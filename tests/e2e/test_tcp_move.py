"""A connection moves between library and kernel while both ends send: through a wire that loses frames, with full queues, a
closed window, and half closed either way. Both ends print what they sent and received as SHA-256; the wire counts RSTs.
"""

import itertools
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from bad_wire import BadWire
import case
from netns import binary, preload_env

ports = itertools.count(7700)
LOSS = {"loss": 1, "reorder": 1, "delay_us": 200}


def library():
    return os.path.join(os.path.dirname(preload_env()["LD_PRELOAD"]), "libvma_move.so")


class Moved(BadWire):
    def moved(self, cycles, role="connect", harm=None, peer=None, timeout=240, **options):
        """The end in namespace b moves its connection `cycles` times there and back; the one in a is a kernel socket."""
        port, seed = next(ports), random.randrange(1 << 31)
        print(f"{role} {cycles} cycles {options} seed {seed}", flush=True)
        wire = self.wire(seed=seed, **(harm or {}))
        other = {"connect": "serve", "serve": "connect"}[role]
        ip = {"connect": self.a.ip, "serve": self.b.ip}[role]

        def start(space, what, preload, seed, **args):
            env = {**preload_env(), "LD_PRELOAD": library()} if preload else None
            return space.start([binary("move_stream"), what, ip, str(port), f"seed={seed}",
                                *(f"{k}={v}" for k, v in args.items())], env=env, cpu=1 if preload else 0, stdin=subprocess.PIPE)

        mine = {"cycles": cycles, **options}
        theirs = peer or {}
        if role == "connect":
            far = start(self.a, other, False, seed, **theirs)
            far.expect("ready")
            near = start(self.b, role, True, seed + 1, **mine)
        else:
            near = start(self.b, role, True, seed + 1, **mine)
            near.expect("ready")
            far = start(self.a, other, False, seed, **theirs)
        try:
            if options.get("stall"):
                near.expect(r"moved .*\n", timeout)
                far.stdin.write(b"\n")
                far.stdin.flush()
            near.expect(r"received \d+ [0-9a-f]{64}\n", timeout)
            self.assertEqual(far.wait(60), 0, far.out)
        except AssertionError as failure:
            self.counts(wire)
            raise AssertionError(f"{failure}\n{far.out}\n{wire.out}") from None
        near.stdin.close()
        self.assertEqual(near.wait(30), 0, near.out + far.out)
        counts = self.counts(wire)
        print("  " + near.expect(r"moved .*").group(0), counts, flush=True)

        def line(process, word):
            return re.search(rf"(?m)^{word} (\d+ [0-9a-f]{{64}})$", process.out).group(1)

        self.assertEqual(line(near, "sent"), line(far, "received"))
        self.assertEqual(line(far, "sent"), line(near, "received"))
        self.assertEqual(counts["resets"], 0, wire.out)
        # Kernel and library have both carried it: the kernel of b saw segments in every cycle, but not all of them.
        if harm:
            self.assertGreater(counts["lost"], 0, counts)


class Smoke(Moved):
    def test_under_load(self):
        self.moved(30, harm=LOSS)

    def test_accepted(self):
        self.moved(10, role="serve", harm=LOSS)

    def test_full_queues(self):
        self.moved(10, stall=1, peer={"stall": 1})

    def test_half_closed_by_the_peer(self):
        self.moved(10, half="peer", harm=LOSS, peer={"half": "self"})

    def test_half_closed_by_us(self):
        self.moved(10, half="self", harm=LOSS, peer={"least": 40 << 20})

    def test_nothing_reaches_half_a_socket(self):
        # Soon after accept(): the connection has no flow of its own yet.
        self.moved(1, role="serve", bytes=1, overheard=1)

    def test_undo_of_every_step(self):
        self.moved(5, fail=1, harm=LOSS)


class Full(Moved):
    def test_500_times(self):
        self.moved(500, harm=LOSS, timeout=850)

    def test_500_times_accepted(self):
        self.moved(500, role="serve", harm=LOSS, timeout=850)


if __name__ == "__main__":
    case.main()
