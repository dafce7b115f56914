"""Programs that have little: descriptors, memory, room in /dev/shm, time on a processor; another clock than their peers; or 200 of
themselves on one interface. Their peers are the kernel's and compare every byte; at the end nothing is left.
"""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import binary, eventually, preload_env
from tcx import left

ports = itertools.count(8100)
PIECE = 300_000  # scarce.py
# Mounts of its own, with a /dev/shm of one page that is full.
FULL_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k none /dev/shm && head -c 8192 /dev/zero > /dev/shm/full; exec "$0" "$@"']
# A hundred days ahead.
OTHER_CLOCK = ["unshare", "--time", "--monotonic", "8640000", "--boottime", "8640000", "--fork", "--kill-child"]


class ScarceCase(case.NetCase):
    preload = True

    def setUp(self):
        self.port = next(ports)
        self.folder = tempfile.mkdtemp(prefix="vma-scarce-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def env(self, **variables):
        return preload_env(VMA_TRACELEVEL="error", **{"VMA_STATS_SHMEM_DIR": self.folder, **variables}) if self.preload else None

    def server(self, script, *words, prefix=(), **variables):
        server = self.python(self.b, script, *words[:1], self.b.ip, self.port, *words[1:], start=True, env=self.env(**variables),
                             prefix=prefix, stdin=subprocess.PIPE)
        self.addCleanup(server.kill)
        server.expect("ready", 30)
        return server

    def dial(self):
        s = self.a.call(lambda: duplex.dial(self.b.ip, self.port))
        self.addCleanup(s.close)
        return s

    def nothing_is_left(self):
        """When the programs have ended: no process, no program on the interface, no page."""
        self.assertTrue(eventually(lambda: not self.b.pids(), 30), "a process is left")
        self.assertTrue(eventually(lambda: left(self.b) == [], 10), left(self.b))
        subprocess.run([binary("vma_stats"), "-k", self.folder], capture_output=True, check=False, timeout=20)
        self.assertEqual(os.listdir(self.folder), [])


class Short(ScarceCase):
    def test_descriptors(self):
        """accept() says so, and the connection waits until there is one."""
        server = self.server("scarce.py", "descriptors", prefix=["prlimit", "--nofile=48"])
        first = self.dial()
        duplex.exchange(first, 1, PIECE, half_close=False)
        server.expect("full")
        second = self.dial()
        duplex.exchange(first, 2, PIECE, half_close=False)
        server.expect("accept EMFILE socket EMFILE")
        server.expect("accepted")
        duplex.exchange(second, 3, PIECE, half_close=False)
        duplex.exchange(first, 4, PIECE, half_close=False)
        self.assertEqual(server.wait(20), 0, server.out)
        self.nothing_is_left()

    def test_memory(self):
        """More than fits is on its way to a program that does not read."""
        for variables in ({"VMA_RX_BUFS": 300}, {"VMA_TCP_MAX_MEMORY": "1M"}):
            with self.subTest(**variables):
                server = self.server("scarce.py", "memory", 8, **variables)
                failed = []

                def talk(s, seed):
                    try:
                        duplex.exchange(s, seed, PIECE, half_close=False)
                    except AssertionError as error:
                        failed.append(error)

                peers = [threading.Thread(target=talk, args=(self.dial(), i)) for i in range(8)]
                for peer in peers:
                    peer.start()
                server.expect("accepted")
                server.tell("read")
                for peer in peers:
                    peer.join(3 * duplex.LIMIT)
                self.assertEqual(failed, [])
                self.assertEqual(server.wait(20), 0, server.out)
                self.port = next(ports)
        self.nothing_is_left()

    def segments(self, prefix, **variables):
        """How many the kernel of b sees while a server there answers a hundred questions, at the end of a conversation."""
        server = self.server("soak_server.py", "plain", prefix=prefix, **variables)
        s = self.dial()
        s.sendall(b"e")
        # The first may be the kernel's, which looks the neighbour up, until the connection is taken over.
        for seed in range(10):
            duplex.exchange(s, seed, PIECE, half_close=False)
        seen = self.kernel_segments(self.b, s)
        self.assertEqual(server.stop(signal.SIGTERM), 0, server.out)
        self.nothing_is_left()
        return seen

    def by_ring(self, seen):
        if self.preload:
            self.assertLess(seen, case.SLACK)
        else:
            self.assertGreaterEqual(seen, 100)

    def test_locked_memory(self):
        self.by_ring(self.segments(["prlimit", "--memlock=65536"]))

    def test_size_of_files(self):
        """No room for the memory that a ring's connections are in: the kernel's."""
        self.assertGreaterEqual(self.segments(["prlimit", "--fsize=4096"]), 100)

    def test_full_shm(self):
        self.by_ring(self.segments(FULL_SHM, VMA_STATS_SHMEM_DIR="/dev/shm"))

    def test_another_clock(self):
        """A time namespace: the peer, the broker that sees the connection through, and the kernel have their own."""
        server = self.server("soak_server.py", "plain", prefix=OTHER_CLOCK)
        s = self.dial()
        s.sendall(b"e")
        for seed in range(10):
            duplex.exchange(s, seed, PIECE, half_close=False)
        self.by_ring(self.kernel_segments(self.b, s))
        server.kill()
        self.assertEqual(s.recv(1), b"")
        self.nothing_is_left()


class ShortKernel(Short):
    preload = False

    def nothing_is_left(self):
        pass


# Says something to an echo server, and compares.  argv: SUPPORT IP PORT SEED
ONE_OF_MANY = """import sys
sys.path.insert(0, sys.argv[1])
import duplex
s = duplex.dial(sys.argv[2], int(sys.argv[3]))
s.sendall(b"e")
for i in range(5):
    duplex.exchange(s, int(sys.argv[4]) + i, 20_000, half_close=False)
print("offloaded" if not duplex.served_by_kernel(s) else "kernel", flush=True)
sys.stdin.read()
"""


class ClockSteps(ScarceCase):
    """Full tier, and alone: for less than a second each the clock of the whole machine is wrong."""

    def test_conversations_go_on(self):
        server = self.server("soak_server.py", "plain")
        connections = [self.dial() for _ in range(4)]
        for s in connections:
            s.sendall(b"e")
        for seconds in (5, -5):
            with self.subTest(seconds=seconds):
                clock = self.python(self.a, "clock_step.py", seconds, start=True, stdin=subprocess.PIPE)
                try:
                    clock.expect("set")
                    # One ends and another one begins meanwhile.
                    connections.pop().close()
                    connections.append(self.dial())
                    connections[-1].sendall(b"e")
                    for seed, s in enumerate(connections):
                        duplex.exchange(s, seed, 3000, half_close=False)
                finally:
                    clock.stdin.close()
                    clock.expect("right")
                duplex.exchange(connections[0], 7, PIECE, half_close=False)
        if self.preload:
            self.assertLess(self.kernel_segments(self.b, connections[0]), case.SLACK)
        server.stop(signal.SIGTERM)
        self.nothing_is_left()


class Long(ScarceCase):
    """Full tier."""

    def test_stopped(self):
        """Ten seconds of SIGSTOP in the middle of what six peers say: the bytes wait."""
        server = self.server("soak_server.py", "plain")
        failed, enough = [], threading.Event()

        def talk(s, seed):
            try:
                while not enough.is_set():
                    duplex.exchange(s, seed, PIECE, half_close=False)
                    seed += 6
            except AssertionError as error:
                failed.append(error)

        connections = [self.dial() for _ in range(6)]
        for s in connections:
            s.sendall(b"e")
        peers = [threading.Thread(target=talk, args=(s, i)) for i, s in enumerate(connections)]
        for peer in peers:
            peer.start()
        enough.wait(1)
        server.send_signal(signal.SIGSTOP)
        enough.wait(10)
        server.send_signal(signal.SIGCONT)
        enough.wait(1)
        enough.set()
        for peer in peers:
            peer.join(2 * duplex.LIMIT)
        self.assertEqual(failed, [])
        server.stop(signal.SIGTERM)
        self.nothing_is_left()

    def test_two_hundred(self):
        """Processes at once on one interface. What of them has no ring runs on the kernel; all answers are right."""
        echo = self.python(self.a, "soak_server.py", "plain", self.a.ip, self.port, start=True)
        echo.expect("ready")
        crowd = [self.b.start(["/usr/bin/python3", "-B", "-c", ONE_OF_MANY, case.SUPPORT, self.a.ip, self.port, i], env=self.env(VMA_RX_BUFS=300),
                              stdin=subprocess.PIPE) for i in range(200)]
        ways = [process.expect("(?m)^(offloaded|kernel)$", 300).group(1) for process in crowd]
        print(f"{ways.count('offloaded')} of {len(ways)} by a ring", flush=True)
        self.assertGreater(ways.count("offloaded"), len(ways) / 2)
        # Half of them die without a word.
        for i, process in enumerate(crowd):
            if i % 2:
                process.send_signal(signal.SIGKILL)
            else:
                process.stdin.close()
        for i, process in enumerate(crowd):
            self.assertEqual(process.wait(60), -signal.SIGKILL if i % 2 else 0, process.out)
        self.nothing_is_left()


if __name__ == "__main__":
    case.main()
