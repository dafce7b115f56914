"""In a guest with Debian 12's own kernel (6.1), which has no TCX: one line says so, programs run on the kernel, and everything that
comes after the first socket is silent.
"""

import itertools
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import binary, preload_env

ports = itertools.count(7600)
LINE = "the kernel has no TCX hooks (Linux 6.6 or later is needed)"


class Stable(case.NetCase):
    def setUp(self):
        self.assertEqual(os.uname().release.split(".")[:2], ["6", "1"], "another kernel than this test is for")

    def explained(self, process):
        return subprocess.run([binary("vma_stats"), "explain", "-p", str(process.pid)], capture_output=True, text=True, timeout=60,
                              check=True).stdout

    def said_once(self, process):
        """The default level tells it once, and nothing else."""
        told = [line for line in process.out.splitlines() if "VMA" in line and "WARNING" in line.upper()]
        self.assertEqual([LINE in line for line in told], [True], process.out)

    def test_streams(self):
        port = next(ports)
        server = self.python(self.b, "soak_server.py", "plain", self.b.ip, port, start=True, env=preload_env())
        server.expect("ready")
        for _ in range(2):
            with self.a.call(lambda: duplex.dial(self.b.ip, port)) as s:
                s.sendall(b"e")
                duplex.exchange(s, 1, 1_000_000, half_close=False)
                self.assertGreaterEqual(self.kernel_segments(self.b, s), 100)
                self.assertRegex(self.explained(server), rf"tcp +\S+:{port} +-> {self.a.ip}:\d+ +kernel")
        self.said_once(server)

    def test_datagrams(self):
        port = next(ports)
        server = self.python(self.b, "udp_echo.py", self.b.ip, port, preload=True, start=True)
        server.expect("ready")
        with self.through_the_kernel(self.b, 200):
            client = self.python(self.a, "udp_talk.py", "quic", self.b.ip, port, 200, preload=True)
        self.assert_ok(client)
        self.said_once(server)
        self.said_once(client)


if __name__ == "__main__":
    case.main()
