"""socat at both ends: streams and datagrams, a child for each connection, a program that gets the connection as its standard
input and output, TLS."""

import itertools
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from programs import ProgramCase, need, seeded_file

ports = itertools.count(9100)


class Socat(ProgramCase):
    size = 10 << 20

    def setUp(self):
        super().setUp()
        self.sha = seeded_file(self.path("data"), self.size)

    def server(self, ends, address, protocol="tcp"):
        """Blocks of a page: a larger one that socat writes to its own pipe may wait for ever, preloaded or not."""
        self.port = next(ports)
        server = self.b.start([need("socat", "socat"), "-b", 4096, *(word.format(ip=self.b.ip, port=self.port) for word in address)],
                              env=ends.env("server"), cwd=self.folder)
        self.b.wait_bound(protocol, self.port, process=server)
        return server

    def client(self, ends, address, source=None):
        """The bytes of the source go there, what comes back is summed."""
        words = [*ends.words("client"), "socat", "-t", "20", "-", address.format(ip=self.b.ip, port=self.port)]
        line = f"{' '.join(words)} < {source or self.path('data')} | sha256sum"
        done = self.a.run(["bash", "-o", "pipefail", "-c", line], timeout=60)
        self.assert_ok(done)
        return done.out.split()[0]

    def streams(self, names, times):
        """PIPE sends back in the process of the connection; EXEC gives a program the connection, or a socketpair's end."""
        kinds = {"pipe": ("TCP-LISTEN:{port},bind={ip},reuseaddr,fork", "PIPE"),
                 "exec": ("TCP-LISTEN:{port},bind={ip},reuseaddr,fork", "EXEC:cat"),
                 "exec nofork": ("TCP-LISTEN:{port},bind={ip},reuseaddr,fork", "EXEC:cat,nofork")}
        for name in names:
            for kind, address in kinds.items():
                with self.preloaded(name) as ends:
                    print(f"  {kind}", flush=True)
                    server = self.server(ends, address)
                    with self.segments(ends, least=50, slack=200, unseen=("server",) if ends else ()):
                        for _ in range(times):
                            self.assertEqual(self.client(ends, "TCP:{ip}:{port}"), self.sha, server.out)
                    self.assertTrue(server.running(), server.out)
                    self.assertIn(server.stop(signal.SIGTERM), (143, -15), server.out)

    def one_connection(self, names):
        """Without fork: the connection stays in the process that has the listener, and is offloaded at both ends."""
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends, ("TCP-LISTEN:{port},bind={ip},reuseaddr", "PIPE"))
                with self.segments(ends, least=50, slack=150):
                    self.assertEqual(self.client(ends, "TCP:{ip}:{port}"), self.sha, server.out)
                self.assertEqual(server.wait(10), 0, server.out)

    def datagrams(self, names, times):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends, ("UDP-LISTEN:{port},bind={ip},reuseaddr,fork", "PIPE"), protocol="udp")
                source = self.write("words", "seven words that fit in a datagram\n" * 20)
                with open(source, "rb") as f:
                    words = f.read()
                for i in range(times):
                    line = " ".join([*ends.words("client"), "socat", "-t", "2", "-T", "2", "-", f"UDP:{self.b.ip}:{self.port}"])
                    done = self.a.run(["bash", "-c", f"{line} < {source}"], timeout=20)
                    self.assertEqual(done.out.encode(), words, f"{i}: {done}\n{server.out}")
                self.assertTrue(server.running(), server.out)

    def tls(self, names):
        self.certificate(self.b.ip)
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends, ("OPENSSL-LISTEN:{port},bind={ip},reuseaddr,fork,cert=cert.pem,key=key.pem,verify=0", "PIPE"))
                got = self.client(ends, f"OPENSSL:{{ip}}:{{port}},cafile={self.path('cert.pem')},commonname=vt.test")
                self.assertEqual(got, self.sha, server.out)


class Smoke(Socat):
    def test_one_connection(self):
        self.one_connection(("both",))

    def test_streams(self):
        self.streams(("both",), 1)

    def test_datagrams(self):
        self.datagrams(("both",), 2)


class Full(Socat):
    size = 50 << 20

    def test_one_connection(self):
        self.one_connection(self.ALL)

    def test_streams(self):
        self.streams(self.ALL, 3)

    def test_datagrams(self):
        self.datagrams(self.ALL, 5)

    def test_tls(self):
        self.tls(self.ALL)


if __name__ == "__main__":
    del Socat, ProgramCase
    case.main()
