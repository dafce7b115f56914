"""haproxy with four threads, as user nobody, between a client and a server in namespaces of their own: as a TCP proxy of an echo
server, with and without splice, as an HTTP proxy of nginx, and as master and worker that are reloaded under load."""

import itertools
import os
import re
import signal
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import nginx
import duplex
from netns import eventually
from programs import ProgramCase, need, seeded_file

ports = itertools.count(12000)

COMMON = """
global
    nbthread 4
    user nobody
    group nogroup
    maxconn 2000
    hard-stop-after 5s
    {more}
defaults
    mode {mode}
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    {options}
listen front
    bind {front}
    server back {back}
"""

class Haproxy(ProgramCase):
    letters = "abc"
    PLACES = {"client": "a", "proxy": "b", "server": "c"}
    ROLES = {"kernel": (), "all": ("client", "proxy", "server"), "proxy": ("proxy",), "ends": ("client", "server")}
    ALL = tuple(ROLES)
    size = 20 << 20

    def proxy(self, ends, mode, options="", more="", arguments=("-db",)):
        """Between self.b's address towards a and the server's port self.back. Its port is self.front."""
        self.front = next(ports)
        path = self.write("haproxy.cfg", COMMON.format(
            mode=mode, options=options, more=more, front=f"{self.b.addresses['a']}:{self.front}", back=f"{self.c.ip}:{self.back}"))
        proxy = self.b.start([need("haproxy", "haproxy"), *arguments, "-f", path], env=ends.env("proxy"))
        self.b.wait_bound("tcp", self.front, process=proxy)
        return proxy

    def nginx(self, ends):
        self.back = next(ports)
        os.makedirs(self.path("www"), exist_ok=True)
        self.sha = seeded_file(self.path("www/large"), self.size)
        with open(self.path("www/small"), "wb") as f:
            f.write(duplex.pattern(3, 1000))
        path = self.write("nginx.conf", nginx.configuration(self.folder, self.c.ip, self.back))
        server = self.c.start(["nginx", "-p", self.folder, "-c", path], env=ends.env("server"))
        self.c.wait_bound("tcp", self.back, process=server)
        return server

    def fetch(self, ends):
        script = " ".join([*ends.words("client"), f"curl -sS -m 60 http://{self.b.addresses['a']}:{self.front}/large | sha256sum"])
        done = self.a.run(["bash", "-o", "pipefail", "-c", script], timeout=70)
        self.assert_ok(done)
        self.assertEqual(done.out.split()[0], self.sha, done.out)

    def wrk(self, ends, seconds, *options):
        done = self.a.run(["wrk", "-t", "2", "-c", "32", "-d", f"{seconds}s", "--timeout", "5s", *options,
                           f"http://{self.b.addresses['a']}:{self.front}/small"], env=ends.env("client"), timeout=seconds + 30)
        self.assert_ok(done)
        requests = int(re.search(r"(\d+) requests in", done.out).group(1))
        print(f"  {requests / seconds:.0f} requests/s", flush=True)
        self.assertGreater(requests, 100 * seconds, done.out)
        self.assertNotIn("Non-2xx", done.out)
        self.assertNotIn("Socket errors", done.out)
        return requests

    def http(self, names, seconds):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.nginx(ends)
                proxy = self.proxy(ends, "http")
                with self.segments(ends, least=200 * seconds, slack=self.size >> 13):
                    self.fetch(ends)
                    self.wrk(ends, seconds)
                # haproxy's listener is the kernel's (SO_REUSEPORT): a connection of one request is not worth taking over.
                with self.segments(ends, least=200 * seconds, slack=self.size >> 13, unseen=("proxy",)):
                    self.wrk(ends, seconds, "-H", "Connection: close")
                self.assertTrue(proxy.running() and server.running(), f"{proxy.out}\n{server.out}")
                self.assertIn(proxy.stop(signal.SIGTERM), (0, 143, -15), proxy.out)

    def tcp(self, names, connections, each, options="", spliced=False):
        """Echoes through the proxy: long ones, and short ones that are ended by a half-close, which has to pass both ways."""
        for name in names:
            with self.preloaded(name) as ends:
                self.back = next(ports)
                server = self.python(self.c, "echo_threads.py", self.c.ip, self.back, start=True, env=ends.env("server"))
                server.expect("ready")
                proxy = self.proxy(ends, "tcp", options)
                unseen = ("proxy",) if spliced else ()
                with self.segments(ends, least=connections * 3, slack=60 * connections, unseen=unseen):
                    for size in (each, 8000):
                        done = self.python(self.a, "echo_clients.py", self.b.addresses["a"], self.front, connections, size, 11,
                                           env=ends.env("client"), timeout=100)
                        self.assertEqual((done.rc, done.out.splitlines()[-1:]), (0, ["good"]),
                                         f"{done.out}\n{proxy.out}\n{server.out}")
                self.assertTrue(proxy.running() and server.running(), f"{proxy.out}\n{server.out}")
                self.assertIn(proxy.stop(signal.SIGTERM), (0, 143, -15), proxy.out)


class Smoke(Haproxy):
    def test_http(self):
        self.http(("all",), 1)

    def test_tcp(self):
        self.tcp(("all",), 40, 300_000)


class Full(Haproxy):
    size = 200 << 20

    def test_http(self):
        self.http(self.ALL, 4)

    def test_tcp(self):
        self.tcp(self.ALL, 200, 1_000_000)

    def test_splice(self):
        """splice() hands a connection back."""
        self.tcp(("kernel", "all", "proxy"), 40, 3_000_000, "option splice-auto", spliced=True)


class Reload(Haproxy):
    """Master and worker: SIGUSR2 makes the master execute itself again and start another worker on the same listener."""

    reloads = 4

    def reloaded(self, ends):
        self.nginx(ends)
        proxy = self.proxy(ends, "http", arguments=("-W", "-db"))
        failed, good, over = [], [], threading.Event()

        def ask():
            while not over.is_set():
                try:
                    with self.a.call(lambda: duplex.dial(self.b.addresses["a"], self.front)) as s:
                        s.sendall(b"GET /small HTTP/1.0\r\n\r\n")
                        got = bytearray()
                        while piece := s.recv(65536):
                            got += piece
                    if got.partition(b"\r\n\r\n")[2] != duplex.pattern(3, 1000):
                        raise AssertionError(bytes(got[:100]))
                    good.append(1)
                except (OSError, AssertionError) as error:
                    failed.append(repr(error))

        def workers():
            with open(f"/proc/{proxy.pid}/task/{proxy.pid}/children") as f:
                return {int(p) for p in f.read().split() if self.is_worker(int(p))}

        askers = [threading.Thread(target=ask) for _ in range(4)]
        self.assertTrue(eventually(lambda: len(workers()) == 1, 10), proxy.out)
        for asker in askers:
            asker.start()
        try:
            for _ in range(self.reloads):
                served, old = len(good), workers()
                self.assertTrue(eventually(lambda: len(good) > served + 20, 20), f"no requests are served {failed[:3]}")
                proxy.send_signal(signal.SIGUSR2)
                self.assertTrue(eventually(lambda: workers() and not workers() & old, 20), f"the old worker stays\n{proxy.out}")
            served = len(good)
            self.assertTrue(eventually(lambda: len(good) > served + 20, 20), f"no requests after the last reload {failed[:3]}")
        finally:
            over.set()
            for asker in askers:
                asker.join(duplex.LIMIT)
        print(f"  {len(good)} requests", flush=True)
        self.assertEqual(failed, [], proxy.out)
        self.assertIn(proxy.stop(signal.SIGTERM, 10), (0, 143, -15), proxy.out)

    @staticmethod
    def is_worker(pid):
        try:
            with open(f"/proc/{pid}/comm") as f:
                return f.read().strip() == "haproxy"
        except OSError:
            return False

    def test_reload(self):
        for name in ("kernel", "all", "proxy"):
            with self.preloaded(name) as ends:
                self.reloaded(ends)


if __name__ == "__main__":
    del Haproxy, ProgramCase
    case.main()
