"""Sockets whose place is decided late, or looked at again later: unbound ones that a thread waits on already,
SO_REUSEPORT before connect, and a network that changes under an offloaded socket. And the order of what comes on several
paths."""

import json
import os
import random
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually

PORT = 7700
COUNT = 200


class Late(case.NetCase):
    def setUp(self):
        self.echo = self.python(self.b, "udp_echo.py", self.b.ip, PORT, start=True, cpu=1)
        self.echo.expect("ready")

    def ask(self, how):
        for preload in (False, True):
            with self.subTest(preload=preload):
                before = self.a.counters("Udp")["InDatagrams"]
                done = self.python(self.a, "udp_late.py", how, self.b.ip, PORT, COUNT, preload=preload, cpu=0)
                moved = self.a.counters("Udp")["InDatagrams"] - before
                self.assert_ok(done)
                self.assertEqual(done.out.strip().splitlines()[-1], str(COUNT), done.out)
                self.assertLess(moved, case.SLACK) if preload else self.assertGreaterEqual(moved, COUNT)

    def test_recv(self):
        self.ask("recv")

    def test_select(self):
        self.ask("select")

    def test_poll(self):
        self.ask("poll")

    def test_epoll(self):
        self.ask("epoll")

    def test_reuseport_then_connect(self):
        self.ask("reuseport")


class Group(case.NetCase):
    def test_reuseport_server_stays_with_the_kernel(self):
        """Others may share its port: it must not take their datagrams."""
        for preload in (False, True):
            with self.subTest(preload=preload):
                server = self.python(self.b, "udp_late.py", "reuseport-server", self.b.ip, PORT, COUNT, start=True,
                                     preload=preload, cpu=1)
                server.expect("ready")
                with self.through_the_kernel(self.b, COUNT):
                    self.assert_ok(self.python(self.a, "udp_talk.py", "ntp", self.b.ip, PORT, COUNT, "--connected"))
                self.assertEqual(server.wait(5), 0, server.out)


class NetworkChanges(case.NetCase):
    def test_server_stays_offloaded(self):
        """Links, addresses and routes that have nothing to do with a socket leave it where it is; what was added to an
        ANY-bound one is served too."""
        for address in (self.b.ip, "0.0.0.0"):
            with self.subTest(address=address):
                port = PORT + (10 if address == "0.0.0.0" else 11)
                echo = self.python(self.b, "udp_echo.py", address, port, start=True, preload=True, cpu=1)
                echo.expect("ready")
                changes = [["ip", "link", "add", "other", "type", "veth", "peer", "name", "another"],
                           ["ip", "link", "set", "other", "up"],
                           ["ip", "address", "add", "198.18.7.1/24", "dev", "other"],
                           ["ip", "route", "add", "198.18.8.0/24", "dev", "other"],
                           ["ip", "link", "set", self.b.dev, "mtu", "1400"],
                           ["ip", "address", "add", "198.18.9.1/32", "dev", self.b.dev],
                           ["ip", "address", "del", "198.18.9.1/32", "dev", self.b.dev],
                           ["ip", "link", "set", self.b.dev, "mtu", "1500"], ["ip", "link", "del", "other"]]
                for change in changes:
                    self.assert_ok(self.b.run(change))
                    done = self.python(self.a, "udp_talk.py", "ntp", self.b.ip, port, 100)
                    self.assert_ok(done)

                # The last look at the network may still be under way: what counts is where it settles.
                def offloaded():
                    before = self.b.counters("Udp")["InDatagrams"]
                    done = self.python(self.a, "udp_talk.py", "ntp", self.b.ip, port, 100)
                    self.assert_ok(done)
                    return json.loads(done.out)["good"] == 100 and \
                        self.b.counters("Udp")["InDatagrams"] - before < 10

                self.assertTrue(eventually(offloaded, 5), "the server was left to the kernel")
                echo.kill()


class Paths(case.NetCase):
    """One socket, four paths: the rings of two interfaces; in fragments, and from the host itself, by the kernel."""

    letters = "abc"
    WHOLE = 600

    def test_order_of_receipt(self):
        for preload in (False, True):
            for number, way in enumerate(("block", "poll", "spin")):
                with self.subTest(preload=preload, way=way):
                    self.in_order(preload, way, PORT + 20 + number)

    def in_order(self, preload, way, port, half_way=lambda: None):
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        paths = [(self.a, self.b.addresses["a"], 20), (self.c, self.b.addresses["c"], 20),
                 (self.a, self.b.addresses["a"], 4000), (self.b, "127.0.0.1", 20)]
        senders = [space.socket(socket.AF_INET, socket.SOCK_DGRAM) for space, _, _ in paths]
        for sender in senders:
            self.addCleanup(sender.close)
        receiver = self.python(self.b, "udp_order.py", way, port, self.WHOLE, start=True, preload=preload,
                               stdin=subprocess.PIPE)
        receiver.expect("ready")
        # Bursts on one path, and changes from each datagram to the next.
        chosen = []
        while len(chosen) < self.WHOLE:
            chosen += [rng.randrange(len(paths))] * rng.choice((1, 1, 1, 1, 8))
        chosen = chosen[:self.WHOLE]
        before = self.b.counters("Udp")["InDatagrams"]
        # From one CPU: two of them would make the kernel's own order a matter of chance.
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cpus)})
        for n, path in enumerate(chosen):
            if n == self.WHOLE // 2:
                half_way()
            _, address, size = paths[path]
            senders[path].sendto(b"%d " % n + bytes(size), (address, port))
        os.sched_setaffinity(0, cpus)
        receiver.tell("read")
        self.assertEqual(receiver.wait(30), 0, f"seed {seed}\n{receiver.out}")
        by_kernel = self.b.counters("Udp")["InDatagrams"] - before
        self.assertEqual(by_kernel, sum(path >= 2 for path in chosen) if preload else self.WHOLE)


class ClockSteps(Paths):
    """Full tier, and alone: for less than a second the clock of the whole machine is wrong."""

    def test_order_of_receipt(self):
        for preload in (False, True):
            for number, seconds in enumerate((-5, 5)):
                with self.subTest(preload=preload, seconds=seconds):
                    # Where all was not read before the clock is right again, nothing can tell what came first.
                    for attempt in range(5):
                        if self.over_a_step(preload, seconds, PORT + 30 + 5 * number + attempt):
                            break
                    else:
                        self.fail("the machine is too slow: read in time in none of the attempts")

    def over_a_step(self, preload, seconds, port):
        """False: it took too long to say."""
        steps = []

        def step():
            steps.append(self.python(self.a, "clock_step.py", seconds, start=True, stdin=subprocess.PIPE))
            steps[0].expect("set")

        try:
            self.in_order(preload, "poll", port, step)
            return True
        except AssertionError:
            if steps and "right" in steps[0].out:
                return False
            raise
        finally:
            for process in steps:
                process.stdin.close()
                process.expect("right")


if __name__ == "__main__":
    case.main()
