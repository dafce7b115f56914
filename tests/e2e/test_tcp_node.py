"""node: http by a cluster of four workers. The primary passes each connection to a worker by a unix socket (round robin), or the
workers accept themselves on its listener (shared)."""

import itertools
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from programs import ProgramCase, need

ports = itertools.count(3100)
SCRIPT = os.path.join(case.SUPPORT, "http_cluster.js")


class Node(ProgramCase):
    def server(self, ends, policy, workers=4):
        self.port = next(ports)
        server = self.b.start([need("node", "nodejs"), SCRIPT, "server", self.b.ip, self.port, workers, policy],
                              env=ends.env("server"))
        server.expect("ready", 30)
        return server

    def ask(self, path):
        done = self.a.run(["curl", "-sS", "-m", "20", f"http://{self.b.ip}:{self.port}{path}"])
        self.assert_ok(done)
        return done.out

    def cluster(self, names, policy, connections, requests):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends, policy)
                # Connections are accepted in the primary or by the kernel's listener: the workers take over what is shared
                # with nobody (docs/decisions/0007), so the server's end is not looked at.
                with self.segments(ends, least=requests, unseen=("server",) if ends else ()):
                    done = self.a.run(["node", SCRIPT, "client", self.b.ip, self.port, connections, requests, 3],
                                      env=ends.env("client"), timeout=120)
                self.assertEqual((done.rc, done.out.splitlines()[-1:]), (0, ["good"]), f"{done.out}\n{server.out}")
                self.workers(server)
                server.send_signal(signal.SIGTERM)
                server.expect("stopped", 20)
                self.assertEqual(server.wait(20), 0, server.out)

    def workers(self, server):
        """Several workers answer, also when some have been replaced."""
        before = {self.ask("/pid") for _ in range(12)}
        self.assertGreaterEqual(len(before), 2, before)
        for i in range(1, 4):
            server.send_signal(signal.SIGUSR2)
            server.expect(f"replaced {i}", 20)
            for _ in range(6):
                self.assertTrue(self.ask("/pid").isdigit())
        self.assertTrue(server.running(), server.out)


class Smoke(Node):
    def test_round_robin(self):
        self.cluster(("both",), "rr", 16, 300)


class Full(Node):
    def test_round_robin(self):
        self.cluster(self.ALL, "rr", 64, 4000)

    def test_shared_listener(self):
        self.cluster(self.ALL, "shared", 64, 4000)


if __name__ == "__main__":
    del Node, ProgramCase
    case.main()
