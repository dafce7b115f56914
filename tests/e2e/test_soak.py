"""A long run: fork, exec, commands, hand-back, resets and churn over a wire that loses, at both ends preloaded and with the
kernel at either; every byte compared. Memory and descriptors of the servers must be in the second half what they were. Memory is
what is held: python's garbage and the free memory of malloc, whose pieces spread over the heap for a long time, are given back
before it is read.

VMA_TEST_SOAK_MINUTES (./dev soak MINUTES) is the length of the run; VMA_TEST_SEED repeats one.
"""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from bad_wire import BadWire
import case
from netns import eventually, preload_env
from test_tcp_churn import slope

PORT = 7900
WAYS = {"plain": "eeehcr", "forking": "eehcrx"}
BAD = {"loss": 0.5, "reorder": 1, "duplicate": 0.5, "delay_us": 500}
QUIET = preload_env(VMA_TRACELEVEL="warning")
ROUND = 30  # seconds that one client process lives


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Soak(BadWire):
    minutes = float(os.environ.get("VMA_TEST_SOAK_MINUTES", "10"))

    def test_mixture(self):
        seed = int(os.environ.get("VMA_TEST_SEED", random.randrange(1 << 31)))
        print(f"seed {seed}, {self.minutes} minutes", flush=True)
        wire = self.wire(seed=seed, **BAD)
        servers = {}
        for i, kind in enumerate(WAYS):
            servers[kind] = self.python(self.b, "soak_server.py", kind, self.b.ip, PORT + i, start=True, env=QUIET)
            servers[kind].expect("ready")
        begin, points, still = time.monotonic(), {kind: [] for kind in servers}, {}
        rounds = max(4, int(self.minutes * 60 / ROUND))
        for n in range(rounds):
            client = self.python(self.a, "soak_client.py", ROUND, seed + n, 6, ",".join(WAYS.values()),
                                 *(f"{self.b.ip}:{PORT + i}" for i in range(len(WAYS))), start=True,
                                 env=QUIET if n % 3 else None)
            status = client.wait(ROUND + 90)
            print(f"  {n + 1} of {rounds}, client {'preloaded' if n % 3 else 'kernel'}: {client.out.strip()}", flush=True)
            self.assertEqual(status, 0, client.out + "".join(s.out for s in servers.values()))
            for kind, server in servers.items():
                self.assertTrue(server.running(), server.out)
                # Only its own are left once the children have ended and the last connections are over.
                if kind not in still:
                    still[kind] = descriptors(server.pid)
                self.assertTrue(eventually(lambda: descriptors(server.pid) <= still[kind], 70),
                                f"{kind}: {descriptors(server.pid)} descriptors, {still[kind]} after the first round")
                server.send_signal(signal.SIGUSR1)
                server.expect(rf"settled {n + 1}\n", 20)
                points[kind].append((time.monotonic() - begin, resident(server.pid)))
        print(f"  wire {self.counts(wire)}", flush=True)
        for kind, server in servers.items():
            half = points[kind][len(points[kind]) // 2:]
            growth = slope(half) if len(half) > 2 else 0
            print(f"  {kind}: resident set {half[0][1]} to {half[-1][1]} KiB, {growth:+.3%} over the last half, "
                  f"{descriptors(server.pid)} descriptors", flush=True)
            self.assertLess(growth, 0.01, points[kind])
            server.send_signal(signal.SIGTERM)
            server.expect("stopped", 20)
            self.assertEqual(server.wait(20), 0, server.out)


if __name__ == "__main__":
    del BadWire
    case.main()
