"""python's own servers: asyncio (plain, TLS, datagrams), socketserver by threads and by children, selectors, a thread pool that
accepts in every thread, processes that are spawned. The clients are asyncio's."""

import itertools
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually
from programs import ProgramCase

ports = itertools.count(7800)
# Served in the process that made the listener: past the kernel. The others' connections are adopted, or shared and the kernel's.
OWN = ("asyncio", "asyncio_tls", "threading", "selectors", "executor")
SHARED = ("forking", "reuseport", "spawn")


class Python(ProgramCase):
    def serve(self, ends, kind, client, count, size, files, workers=8):
        port = next(ports)
        server = self.python(self.b, "py_servers.py", kind, self.b.ip, port, workers, start=True,
                             env={**files, **(ends.env("server") or {})})
        server.expect("ready", 20)
        self.b.wait_bound("udp" if client == "udp" else "tcp", port, process=server)
        protocol = "Udp" if client == "udp" else "Tcp"
        before = {s: s.counters(protocol) for s in (self.a, self.b)}
        done = self.python(self.a, "py_clients.py", client, self.b.ip, port, count, size, 5,
                           env={**files, **(ends.env("client") or {})}, timeout=100)
        self.assertEqual((done.rc, done.out.splitlines()[-1:]), (0, ["good"]), f"{done.out}\n{server.out}")
        key = "InDatagrams" if client == "udp" else "InSegs"
        for role, space in (("client", self.a), ("server", self.b)):
            seen = space.counters(protocol)[key] - before[space][key]
            if role not in ends:
                self.assertGreaterEqual(seen, count, f"{kind}: the kernel of the {role} saw {seen}")
            elif role == "client" or kind not in SHARED:
                self.assertLess(seen, count // 2 + 50, f"{kind}: the kernel of the {role} saw {seen}")
        server.send_signal(signal.SIGTERM)
        server.expect("stopped", 20)
        self.assertEqual(server.wait(20), 0, server.out)
        self.assertTrue(eventually(lambda: not self.b.pids(), 5), "a process is left")

    def runs(self, names, kinds, count, size):
        self.certificate(self.b.ip)
        files = {"CERT": self.path("cert.pem"), "KEY": self.path("key.pem")}
        for name in names:
            for kind in kinds:
                with self.subTest(kind=kind), self.preloaded(name) as ends:
                    print(f"  {kind}", flush=True)
                    if kind == "datagrams":
                        self.serve(ends, kind, "udp", 10 * count, 1200, files)
                    else:
                        self.serve(ends, kind, "tls" if kind == "asyncio_tls" else "tcp", count, size, files)


class Smoke(Python):
    def test_servers(self):
        self.runs(("both",), ("asyncio_tls", "threading", "reuseport", "datagrams"), 30, 50_000)


class Full(Python):
    def test_servers(self):
        self.runs(self.ALL, (*OWN, *SHARED, "datagrams"), 200, 300_000)


if __name__ == "__main__":
    del Python, ProgramCase
    case.main()
