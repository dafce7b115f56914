"""HTTP: curl of a large file from nginx and from python's http.server, sha256 equal; wrk with and without keep-alive."""

import hashlib
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import nginx
from netns import eventually, preload_env

ENDS = {"both": (True, True), "client": (True, False), "server": (False, True), "kernel": (False, False)}
# A port per server: tuples that the kernel has in TIME_WAIT from a run before stay the kernel's.
ports = itertools.count(8080)
SLACK = 100  # segments the kernel may see: connections before the listener is served, or after it is gone


def random_file(path, size):
    """A file of seeded random bytes; its sha256."""
    block, digest = os.urandom(1 << 20), hashlib.sha256()
    with open(path, "wb") as f:
        for i in range(size >> 20):
            piece = i.to_bytes(8, "big") + block[8:]
            f.write(piece)
            digest.update(piece)
    return digest.hexdigest()


class Http(case.NetCase):
    size = 32 << 20

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp(prefix="vt-web-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        os.mkdir(os.path.join(cls.folder, "www"))
        os.chmod(cls.folder, 0o755)
        cls.sha = random_file(os.path.join(cls.folder, "www/large"), cls.size)
        with open(os.path.join(cls.folder, "www/small"), "w") as f:
            f.write("x" * 1000)

    def nginx(self, preload, master="off", sendfile="on", keepalive=65):
        self.port = next(ports)
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w") as f:
            f.write(nginx.configuration(self.folder, self.b.ip, self.port, master,
                                        f"sendfile {sendfile}; keepalive_timeout {keepalive};"))
        server = self.b.start(["nginx", "-p", self.folder, "-c", path], env=preload_env() if preload else None, cpu=1)
        self.b.wait_bound("tcp", self.port, process=server)
        return server

    def python_server(self, preload):
        self.port = next(ports)
        server = self.b.start(["/usr/bin/python3", "-m", "http.server", "--bind", self.b.ip, self.port],
                              env=preload_env() if preload else None, cpu=1, cwd=os.path.join(self.folder, "www"))
        self.b.wait_bound("tcp", self.port, process=server)
        return server

    def fetch(self, preload, timeout=100):
        """curl | sha256sum: only curl is preloaded."""
        words = [f"{k}={v}" for k, v in preload_env(VMA_TRACELEVEL="warning").items()] if preload else []
        script = " ".join([*words, f"curl -sS -m {timeout} http://{self.b.ip}:{self.port}/large | sha256sum"])
        done = self.a.run(["bash", "-o", "pipefail", "-c", script], cpu=0, timeout=timeout + 10)
        self.assert_ok(done)
        self.assertEqual(done.out.split()[0], self.sha, done.out)
        print(f"  {done.seconds:.2f} s, {self.size / done.seconds / 1e6:.0f} MB/s", flush=True)

    def wait_offloaded(self, process):
        """A listener is the kernel's until its program polls or accepts: waits for a connection that the kernel misses."""
        def missed():
            before = self.b.counters("Tcp")["InSegs"]
            with self.a.socket() as s:
                s.settimeout(5)
                s.connect((self.b.ip, self.port))
                s.sendall(b"GET /small HTTP/1.0\r\n\r\n")
                while s.recv(65536):
                    pass
            return self.b.counters("Tcp")["InSegs"] == before
        self.assertTrue(eventually(missed, timeout=10), f"every connection went to the kernel\n{process.out}")

    def oracle(self, before, client, server, least, slack=SLACK):
        """client, server: is it preloaded? None: not looked at."""
        for space, preloaded, start in ((self.a, client, before[0]), (self.b, server, before[1])):
            if preloaded is None:
                continue
            seen = space.counters("Tcp")["InSegs"] - start
            if preloaded:
                # Connections that are open when a program ends move into its kernel and end there.
                self.assertLess(seen, max(slack, least // 10), f"the kernel of {space.letter} saw {seen} segments")
            else:
                self.assertGreater(seen, least, f"the kernel of {space.letter} saw only {seen} segments")

    def segments(self):
        return [s.counters("Tcp")["InSegs"] for s in (self.a, self.b)]

    def file_from(self, start, ends, adopted):
        """`adopted`: the server's connections begin in the kernel and are taken over after a few calls."""
        client, server = ends
        process = start(server)
        try:
            if server and not adopted:
                self.wait_offloaded(process)
            before = self.segments()
            self.fetch(client)
            if server and adopted:
                self.assertLess(self.segments()[1] - before[1], max(200, self.size >> 20), "the kernel went on with it")
                server = None
            self.oracle(before, client, server, self.size >> 22)
        finally:
            status = process.stop(signal.SIGINT)
        self.assertNotIn("emerg", process.out)
        self.assertIn(status, (0, 1, 130, -2), process.out)  # python ends by KeyboardInterrupt

    def files(self, servers, adopted=False):
        for name, start in servers.items():
            for end, ends in ENDS.items():
                with self.subTest(server=name, ends=end):
                    print(f"{name}, preloaded {end}", flush=True)
                    self.file_from(start, ends, adopted)

    def wrk(self, ends, close, seconds=2):
        client, server = ends
        process = self.nginx(server)
        try:
            if server:
                self.wait_offloaded(process)
            before = self.segments()
            line = ["wrk", "-t", "1", "-c", "32", "-d", f"{seconds}s", "--timeout", "5s"]
            if close:
                line += ["-H", "Connection: close"]
            done = self.a.run([*line, f"http://{self.b.ip}:{self.port}/small"], env=preload_env() if client else None, cpu=0,
                              timeout=seconds + 30)
            self.assert_ok(done)
            requests = int(re.search(r"(\d+) requests in", done.out).group(1))
            print(f"  {requests / seconds:.0f} requests/s", flush=True)
            self.assertGreater(requests, 200 * seconds, done.out)
            self.assertNotIn("Non-2xx", done.out)
            self.assertNotIn("Socket errors", done.out)
            # wrk ends in the middle of 32 requests.
            self.oracle(before, client, server, requests // 2, slack=32 * 8)
        finally:
            process.stop(signal.SIGINT)

    def wrks(self, ends, seconds=2):
        for close in (False, True):
            for name in ends:
                with self.subTest(close=close, ends=name):
                    print(f"wrk {'close' if close else 'keep-alive'}, preloaded {name}", flush=True)
                    self.wrk(ENDS[name], close, seconds)


class Smoke(Http):
    def test_nginx(self):
        self.files({"nginx": self.nginx})

    def test_python(self):
        self.files({"python": self.python_server})

    def test_wrk(self):
        self.wrks(("both",), seconds=1)


class Full(Http):
    size = 1 << 30

    def test_files(self):
        self.files({
            "nginx": self.nginx,
            "nginx without sendfile": lambda preload: self.nginx(preload, sendfile="off"),
            "python": self.python_server,
        })

    def test_master_and_worker(self):
        """The worker is a forked child: the listener that it inherits is the kernel's."""
        self.files({"nginx": lambda preload: self.nginx(preload, master="on")}, adopted=True)


class Wrk(Http):
    size = 1 << 20

    def test_all(self):
        self.wrks(ENDS, seconds=5)


if __name__ == "__main__":
    del Http
    case.main()
