"""Programs whose run-time system makes the calls: Go, which makes its system calls itself, so that it stays the kernel's whether
it is static or loads this library, and must go on working; Java NIO by its Selector and by threads, which is offloaded."""

import itertools
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import REPO
from programs import ProgramCase, need

ports = itertools.count(9700)
SOURCES = os.path.join(REPO, "tests/support")


class Go(ProgramCase):
    """Built here, because golang-go is large and only the full tier has it: once static, once with cgo (dynamic)."""

    def built(self, name, cgo):
        subprocess.run([need("go", "golang-go"), "build", "-o", self.path(name), *(["-tags", "netcgo"] if cgo else []),
                        os.path.join(SOURCES, "go/echo.go")], check=True, cwd=self.folder,
                       env={**os.environ, "CGO_ENABLED": "1" if cgo else "0", "GOCACHE": self.path("cache"), "HOME": self.folder,
                            "GO111MODULE": "off", "GOTOOLCHAIN": "local", "GOFLAGS": ""})
        kind = subprocess.run(["ldd", self.path(name)], capture_output=True, text=True, check=False).stdout
        self.assertEqual("libc.so" in kind, cgo, kind)
        return self.path(name)

    def exchanges(self, name, cgo):
        program = self.built(name, cgo)
        for run in self.ALL:
            with self.preloaded(run) as ends:
                port = next(ports)
                server = self.b.start([program, "server", self.b.ip, port], env=ends.env("server"))
                server.expect("ready")
                before = [space.counters("Tcp")["InSegs"] for space in (self.a, self.b)]
                done = self.a.run([program, "client", self.b.ip, port, 200, 200_000, 1], env=ends.env("client"), timeout=60)
                self.assertEqual((done.rc, done.out.splitlines()[-1:]), (0, ["good"]), f"{done.out}\n{server.out}")
                for space, start in zip((self.a, self.b), before):
                    self.assertGreater(space.counters("Tcp")["InSegs"] - start, 500, "not by the kernel?")
                self.assertTrue(server.running(), server.out)

    def test_static(self):
        self.exchanges("static", False)

    def test_dynamic(self):
        self.exchanges("dynamic", True)


class Java(ProgramCase):
    def test_nio(self):
        subprocess.run([need("javac", "default-jdk-headless"), "-d", self.folder, os.path.join(SOURCES, "java/Echo.java")], check=True)
        java = [need("java", "default-jdk-headless"), "-Xmx256m", "-cp", self.folder, "Echo"]
        for run in self.ALL:
            with self.preloaded(run) as ends:
                port = next(ports)
                server = self.b.start([*java, "server", self.b.ip, port], env=ends.env("server"))
                server.expect("ready", 30)
                if "server" in ends:
                    self.b.wait_served(port, server, 30)
                with self.segments(ends, least=1000):
                    done = self.a.run([*java, "client", self.b.ip, port, 100, 300_000, 1], env=ends.env("client"), timeout=90)
                self.assertEqual((done.rc, done.out.splitlines()[-1:]), (0, ["good"]), f"{done.out}\n{server.out}")
                self.assertTrue(server.running(), server.out)


if __name__ == "__main__":
    del ProgramCase
    case.main()
