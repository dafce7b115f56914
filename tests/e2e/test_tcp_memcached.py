"""memcached with four threads, as user nobody with ambient capabilities: a crowd of clients that know every answer, over TCP and
by UDP. Started as root and told to drop it (-u) before it has a socket it is all the kernel's, and works."""

import itertools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from programs import ProgramCase, as_user, need

ports = itertools.count(11300)


class Memcached(ProgramCase):
    def server(self, ends, drops=False):
        self.port = next(ports)
        server = self.b.start([need("memcached", "memcached"), "-l", self.b.ip, "-p", self.port, "-U", self.port, "-t", 4,
                               "-m", 64, *(["-u", "nobody"] if drops else [])],
                              env=ends.env("server") if drops else self.readable(ends.env("server")),
                              prefix=() if drops else as_user("nobody", "nogroup"))
        self.b.wait_bound("tcp", self.port, process=server)
        self.b.wait_bound("udp", self.port, process=server)
        if "server" in ends and not drops:
            self.b.wait_served(self.port, server)
        return server

    def client(self, ends, *words):
        done = self.python(self.a, *words, env=ends.env("client"), timeout=120)
        self.assertEqual((done.rc, done.out.splitlines()[-1:]), (0, ["good"]), done.out)

    def crowd(self, names, threads, rounds):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends)
                with self.segments(ends, least=threads * rounds):
                    self.client(ends, "memcached_load.py", self.b.ip, self.port, threads, rounds, 7)
                self.assertIn(server.stop(), (0, -2), server.out)

    def datagrams(self, names, count):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends)
                before = [space.counters("Udp")["InDatagrams"] for space in (self.a, self.b)]
                self.client(ends, "memcached_udp.py", self.b.ip, self.port, count)
                for role, space, start in zip(("client", "server"), (self.a, self.b), before):
                    seen = space.counters("Udp")["InDatagrams"] - start
                    if role in ends:
                        self.assertLess(seen, 0.05 * count + case.SLACK, f"the kernel of the {role} delivered {seen}")
                    else:
                        self.assertGreaterEqual(seen, count, f"the kernel of the {role} delivered {seen}")
                self.assertIn(server.stop(), (0, -2), server.out)


class Smoke(Memcached):
    def test_crowd(self):
        self.crowd(("both", "server"), 16, 50)

    def test_datagrams(self):
        self.datagrams(("both",), 500)


class Full(Memcached):
    def test_crowd(self):
        self.crowd(self.ALL, 64, 200)

    def test_datagrams(self):
        self.datagrams(self.ALL, 5000)

    def test_without_privileges(self):
        with self.preloaded("both") as ends:
            self.server(ends, drops=True)
            with self.segments(ends, least=1000, unseen=("server",)):
                self.client(ends, "memcached_load.py", self.b.ip, self.port, 16, 50, 7)


if __name__ == "__main__":
    del Memcached, ProgramCase
    case.main()
