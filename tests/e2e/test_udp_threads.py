"""Many threads of a program, each asleep on a socket of its own, on one ring."""

import os
import random
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, preload_env

PORT, THREADS, ROUNDS = 7700, 24, 300
SEED = int(os.environ.get("VMA_TEST_SEED", "7"))


def times_slept(pid, thread):
    with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary"))


class Sleepers(case.NetCase):
    def setUp(self):
        self.answering = self.python(self.b, "udp_threads.py", self.b.ip, PORT, THREADS, preload=True, start=True)
        self.pid, *self.threads = map(int, self.answering.expect(r"ready ([\d ]+)\n").group(1).split())
        self.peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.peer.close)
        self.peer.settimeout(10)

    def ask(self, thread, text=b"x"):
        self.peer.sendto(text, (self.b.ip, PORT + thread))
        self.assertEqual(self.peer.recv(100), text)

    def test_a_datagram_does_not_wake_everybody(self):
        before = [times_slept(self.pid, thread) for thread in self.threads]
        with self.past_the_kernel(self.b, ROUNDS):
            for _ in range(ROUNDS):
                self.ask(0)
        after = [times_slept(self.pid, thread) for thread in self.threads]
        woken = sorted(b - a for a, b in zip(before, after))
        # Everybody was woken each time before there was one who attends the ring; at most four do, and the one it was for.
        self.assertLess(sum(woken[:-5]), ROUNDS, woken)

    def test_whoever_ends_leaves_the_ring_to_another(self):
        print("seed", SEED)
        rng = random.Random(SEED)
        left = list(range(THREADS))
        while left:
            for _ in range(5):
                self.ask(rng.choice(left))
            self.ask(left.pop(rng.randrange(len(left))), b"end")
        self.assertEqual(self.answering.wait(10), 0, self.answering.out)


class Exit(case.NetCase):
    def test_while_threads_are_busy(self):
        """They go on behind the library's destructor, with the memory that they use."""
        with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.bind((self.a.ip, PORT))
            for _ in range(5):
                done = self.b.run([binary("exit_busy"), self.a.ip, str(PORT)], env=preload_env(VMA_TRACELEVEL="warning"))
                self.assert_ok(done)
                self.assertEqual(done.out, "mapped\n")


if __name__ == "__main__":
    case.main()
