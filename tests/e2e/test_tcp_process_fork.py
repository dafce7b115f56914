"""Live connections across every way to make a process: exact bytes both ways while they move, no reset."""

import concurrent.futures
import os
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from bad_wire import BadWire

PORT = 7400
BYTES = 1_500_000
MODES = ("blocking", "nonblocking", "epoll")


class Ways(case.PeerCase):
    script, port = "fork_ways.py", PORT

    def walk(self, names):
        """Each name is a connection that fork_ways.py makes; the peer in namespace a is the kernel's."""
        subject = self.subject(self.a.ip, PORT, *names)
        for seed, name in enumerate(names):
            with self.subTest(name):
                try:
                    with self.accept(subject) as s:
                        duplex.exchange(s, seed, BYTES)
                    subject.expect("good" if name.startswith("parent_first") else f"{name} good", duplex.LIMIT)
                except (OSError, AssertionError) as error:
                    self.fail(f"{name}: {error}\n{subject.out}")
        self.assertEqual(subject.wait(10, output=False), 0, subject.out)


class Matrix(Ways):
    def test_child(self):
        self.walk([f"{way}/{mode}" for way in ("child", "child_beside_holder") for mode in MODES])

    def test_parent(self):
        self.walk([f"{way}/{mode}" for way in ("parent", "child_first") for mode in MODES])

    def test_both(self):
        self.walk([f"turns/{mode}" for mode in MODES] + ["at_once/blocking"])

    def test_parent_ends_first(self):
        for mode in MODES:
            self.walk([f"parent_first/{mode}"])

    def test_other_forks(self):
        self.walk([f"{way}/{mode}" for way, mode in (("grandchild", "blocking"), ("raw_clone", "epoll"),
                                                     ("raw_clone3", "nonblocking"), ("daemonised", "blocking"),
                                                     ("daemon_call", "epoll"))])

    def test_epoll_across_the_fork(self):
        self.walk(["shared_epoll/blocking", "waiting_parent/blocking"])

    def test_programs(self):
        self.walk(["command/blocking", "spawned/blocking", "command/epoll"])


class HalfOpen(BadWire):
    """A listener goes to the kernel at fork while a handshake is under way: the child gets the connection."""
    preload = True

    def test_handshakes_under_way(self):
        self.wire(delay_us=150000)
        server = self.python(self.b, "fork_servers.py", "half_open", self.b.ip, PORT + 9, start=True, preload=self.preload,
                             stdin=subprocess.PIPE)
        server.expect("ready")
        # ETH_P_ALL: such a socket sees a frame before the ring takes it.
        tap = self.b.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
        self.addCleanup(tap.close)
        tap.bind((self.b.dev, 3))
        tap.settimeout(duplex.LIMIT)
        resets = self.a.counters("Tcp")["EstabResets"]

        def one(seed):
            with self.a.call(lambda: duplex.dial(self.b.ip, PORT + 9)) as s:
                duplex.exchange(s, seed, 10_000)

        with concurrent.futures.ThreadPoolExecutor(2) as crowd:
            clients = [crowd.submit(one, seed) for seed in range(2)]
            syns = set()
            while len(syns) < 2:
                frame = tap.recv(200)
                if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_TCP and frame[47] & 0x12 == 2:
                    syns.add(frame[34:36])
            server.tell("go")
            for client in clients:
                client.result(3 * duplex.LIMIT)
        server.expect("stopped", 20)
        self.assertEqual(server.wait(10), 0, server.out)
        self.assertEqual(self.a.counters("Tcp")["EstabResets"], resets, "a connection was reset")


class KernelHalfOpen(HalfOpen):
    preload = False


class Kernel(Matrix):
    """The same without the library: the test itself is right."""
    preload = False


if __name__ == "__main__":
    unittest.main(verbosity=2)
