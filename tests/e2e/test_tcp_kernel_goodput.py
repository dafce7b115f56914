"""TCP beside the kernel's, through the forwarder: how fast a transfer gets through loss and 20 ms of round trip, with our end
sending and receiving, connecting and accepting, against the same transfer between two kernel ends. Every end uses CUBIC.

One repeat is one seed: the wire loses the frames of the same numbers in every transfer of it. A ratio is taken inside a
repeat (kernel's seconds over ours, above 1 ours is faster); what counts is the median of the ratios. A stall is the longest
time in which the receiver got nothing; why they are judged apart is in docs/decisions/0010-stalls.md.

    test_tcp_kernel_goodput.py Full        prints the table of docs/evidence; VMA_GOODPUT_{REPEATS,SEED,LOSS} change it
    test_tcp_kernel_goodput.py Stalls      the same for stalls, of many more repeats

Transfers through loss wait most of the time, so several repeats run side by side, each with namespaces and a wire of its own.
"""

import concurrent.futures
import itertools
import json
import math
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from bad_wire import BadWire
import case

RTT = {"delay_us": 10000}
# Who is preloaded: connecting end, accepting end.
KERNEL = {"kernel": (False, False)}
ENDS = {"client": (True, False), "server": (False, True)}
BAD = {"reorder": {"reorder": 2}, "duplicate": {"duplicate": 2}, "corrupt": {"corrupt": 0.5},
       "all": {"loss": 1, "reorder": 1, "duplicate": 1, "corrupt": 0.2}}
MEGABYTE = 1 << 20
ports = itertools.count(7200)


def results(text):
    return [json.loads(line[7:]) for line in text.splitlines() if line.startswith("result ")]


def spread(values, form):
    return "/".join(form.format(v) for v in (min(values), statistics.median(values), max(values)))


class Transfers(BadWire):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for space in (cls.a, cls.b):
            space.sysctl("net.ipv4.tcp_no_metrics_save", 1)  # or one repeat would tell the next what to expect

    def transfer(self, direction, ends, size, harm, seed):
        """Both ends' numbers in one dictionary: seconds, stall, tcp (of the sender)."""
        port = next(ports)
        wire = self.wire(seed=seed, **RTT, **harm)
        before = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}
        serve = self.python(self.b, "tcp_goodput.py", "serve", self.b.ip, port, size, seed, "cubic", preload=ends[1],
                            start=True)
        serve.expect("ready")
        done = self.python(self.a, "tcp_goodput.py", direction, self.b.ip, port, size, seed, "cubic", preload=ends[0],
                           timeout=400)
        self.assertEqual(done.rc, 0, done.out + serve.out)
        serve.expect("result .*\n")
        mine, peer = results(done.out)[0], results(serve.out)[0]
        counts = self.counts(wire)
        serve.kill()
        for space, preloaded in ((self.a, ends[0]), (self.b, ends[1])):
            seen = space.counters("Tcp")["InSegs"] - before[space]
            if preloaded:
                self.assertLess(seen, case.SLACK, f"the kernel of {space.letter} saw {seen} segments")
            else:
                self.assertGreater(seen, size // 65536, f"the kernel of {space.letter} saw only {seen} segments")
        return {"seconds": mine["seconds"], "stall": (mine if direction == "down" else peer)["stall"],
                "tcp": (mine if direction == "up" else peer)["tcp"], "wire": counts}

    def repeat(self, direction, size, harm, seed, pairings):
        """One repeat: {name of the preloaded end or "kernel": result}."""
        row = {}
        for name, ends in pairings.items():
            row[name] = one = self.transfer(direction, ends, size, harm, seed)
            print(f"  {direction} {harm} seed {seed} {name:6}: {one['seconds']:.2f} s, stall {one['stall']:.3f} s, "
                  f"{one['wire']['lost']} lost, sender {one['tcp']}", flush=True)
        return row

    def compare(self, direction, size, harm, seeds, lanes=1, pairings=KERNEL | ENDS):
        """{name of the preloaded end or "kernel": [results]}, interleaved; so many repeats at a time."""
        cases = [self]
        try:
            for number in range(1, lanes):
                made = type(f"Lane{number}", (type(self),), {})
                cases.append(made())
                made.setUpClass()
            free = list(cases)

            def run(seed):
                lane = free.pop()
                try:
                    return lane.repeat(direction, size, harm, seed, pairings)
                finally:
                    free.append(lane)

            with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
                done = list(pool.map(run, seeds))
        finally:
            for lane in cases[1:]:
                lane.doClassCleanups()
        return {name: [row[name] for row in done] for name in done[0]}

    def table(self, direction, harm, size, rows):
        """Prints the lines of one comparison; {end: median ratio}."""
        verdicts = {}
        kernel = rows["kernel"]
        print(f"{harm} {'client sends' if direction == 'up' else 'server sends'}: kernel "
              f"{spread([size / r['seconds'] / 1e6 for r in kernel], '{:.2f}')} MB/s, stall "
              f"{spread([r['stall'] for r in kernel], '{:.3f}')} s", flush=True)
        for name in ENDS:
            ours = rows[name]
            ratios = [k["seconds"] / o["seconds"] for k, o in zip(kernel, ours)]
            role = "sends" if (name == "client") == (direction == "up") else "receives"
            stalls = [r["stall"] for r in ours]
            print(f"    our {name} {role}: {spread([size / r['seconds'] / 1e6 for r in ours], '{:.2f}')} MB/s, ratio "
                  f"{spread(ratios, '{:.2f}')}, stall {spread(stalls, '{:.3f}')} s", flush=True)
            verdicts[name] = statistics.median(ratios)
        return verdicts


def longer_by_chance(ours, kernel):
    """The rank-sum test of Mann and Whitney, one-sided: how likely ours are so much longer, or more, if both are of a kind."""
    pairs = [(o > k) + 0.5 * (o == k) for o in ours for k in kernel]
    mean = len(pairs) / 2
    deviation = math.sqrt(len(pairs) * (len(ours) + len(kernel) + 1) / 12)
    return 0.5 * math.erfc((sum(pairs) - mean) / deviation / math.sqrt(2))


class Smoke(Transfers):
    def test_exact(self):
        seed = int.from_bytes(os.urandom(3))
        for direction, (name, ends) in itertools.product(("up", "down"), ENDS.items()):
            with self.subTest(direction=direction, ends=name):
                one = self.transfer(direction, ends, 2 * MEGABYTE, {"loss": 1}, seed)
                print(f"{direction} {name} seed {seed}: {one}", flush=True)
                self.assertLess(one["stall"], 5)  # far from Linux's usual fraction of a second

    def test_no_loss(self):
        """How fast is Full's to judge, on a quiet machine."""
        size = 4 * MEGABYTE
        for direction in ("up", "down"):
            rows = self.compare(direction, size, {}, (1, 2, 3))
            self.table(direction, "no loss", size, rows)
            for name, seed in itertools.product(ENDS, range(3)):
                with self.subTest(direction=direction, ends=name, seed=seed):
                    tcp = rows[name][seed]["tcp"]
                    self.assertLess(tcp["retransmits"], tcp["segs_out"] / 20, "nothing was lost")


class Full(Transfers):
    def test_loss(self):
        first = int(os.environ.get("VMA_GOODPUT_SEED", "1"))
        seeds = range(first, first + int(os.environ.get("VMA_GOODPUT_REPEATS", "9")))
        size = 10 * MEGABYTE
        losses = map(int, os.environ.get("VMA_GOODPUT_LOSS", "0,1,5").split(","))
        for loss in losses:
            verdicts = {}
            for direction in ("up", "down"):
                rows = self.compare(direction, size, {"loss": loss}, seeds, lanes=3 if loss else 1)
                for name, ratio in self.table(direction, f"loss {loss} %", size, rows).items():
                    verdicts[direction, name] = ratio
            for (direction, name), ratio in verdicts.items():
                with self.subTest(loss=loss, direction=direction, ends=name):
                    self.assertGreaterEqual(ratio, 0.95)

    def test_exact(self):
        for (what, harm), direction, (name, ends) in itertools.product(BAD.items(), ("up", "down"), ENDS.items()):
            with self.subTest(harm=what, direction=direction, ends=name):
                one = self.transfer(direction, ends, 4 * MEGABYTE, harm, 7)
                print(f"{what} {direction} {name}: {one['seconds']:.2f} s, stall {one['stall']:.3f} s, {one['wire']}", flush=True)


class Stalls(Transfers):
    """The longest stall of a transfer is a timeout and repetitions that were lost again, each twice as long as the one
    before: which of a few transfers has the longest says nothing. Here all of them are compared, and how bad the kernel's worst
    is comes from three times as many."""

    def test_stalls(self):
        first, count = (int(os.environ.get(f"VMA_GOODPUT_{name}", value)) for name, value in (("SEED", "100"), ("REPEATS", "24")))
        for loss in map(int, os.environ.get("VMA_GOODPUT_LOSS", "1,5").split(",")):
            kernel, ours = [], {}
            for direction in ("up", "down"):
                rows = self.compare(direction, 10 * MEGABYTE, {"loss": loss}, range(first, first + count), lanes=12)
                more = self.compare(direction, 10 * MEGABYTE, {"loss": loss}, range(first + count, first + 3 * count), lanes=12,
                                    pairings=KERNEL)
                kernel += [r["stall"] for r in rows["kernel"] + more["kernel"]]
                for name in ENDS:
                    role = "sends" if (name == "client") == (direction == "up") else "receives"
                    ours.setdefault(role, []).extend(r["stall"] for r in rows[name])
            for who, stalls in (("kernel to kernel", kernel), *((f"ours {role}", s) for role, s in ours.items())):
                over = ", ".join(f"{sum(s > limit for s in stalls)} over {limit} s" for limit in (0.2, 0.5, 1, 2, 4))
                print(f"loss {loss} %, {who}: stall {spread(stalls, '{:.3f}')} s of {len(stalls)}; {over}", flush=True)
            for role, stalls in ours.items():
                with self.subTest(loss=loss, ours=role):
                    chance = longer_by_chance(stalls, kernel)
                    print(f"loss {loss} %, ours {role}: as long or longer by chance: {chance:.3f}", flush=True)
                    self.assertGreater(chance, 0.001)


if __name__ == "__main__":
    del Transfers, BadWire
    case.main()
