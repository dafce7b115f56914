"""A preloaded program and vma_stats, which looks at it from outside."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile

import case
from netns import binary

PORT = 7400


def echoes(test, port, count):
    """Sends so many datagrams from namespace a to the program in b, which sends each back; the port that they came from."""
    peer = test.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
    test.addCleanup(peer.close)
    peer.settimeout(5)
    for i in range(count):
        peer.sendto(b"%d" % i, (test.b.ip, port))
        test.assertEqual(peer.recv(100), b"%d" % i)
    return peer.getsockname()[1]


class Viewed(case.NetCase):
    """`script` runs in namespace b on PORT, with a directory for its page."""

    script = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.begin(self.script)

    def begin(self, script, *words, **env):
        self.program = self.python(self.b, script, self.b.ip, PORT, *words, preload=True, start=True, stdin=subprocess.PIPE,
                                   env={"VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "warning",
                                        "VMA_STATS_FILE": os.path.join(self.folder, "closed.%d"), **env})
        self.started()
        self.pid = int(self.program.expect(r"ready (\d+)", timeout=60).group(1))
        self.fds = {name: int(fd) for name, fd in re.findall(r"(?m)^(\w+) (\d+)$", self.program.out) if name != "ready"}
        self.page = os.path.join(self.folder, f"vmastat.{self.pid}")

    def started(self):
        """What a program waits for before it says that it is ready."""

    def stats(self, *args, status=0, prefix=(), tool=None):
        done = self.b.run([tool or binary("vma_stats"), "-k", self.folder, *args], timeout=60, prefix=prefix)
        self.assertEqual(done.rc, status, done.out)
        return done.out

    def explained(self, name):
        return re.search(rf"(?m)^ +fd {self.fds[name]} .*$", self.stats("explain", "-p", str(self.pid))).group(0)

    def json(self, *args):
        """What --json tells of the program, and its sockets by descriptor."""
        (process,) = json.loads(self.stats("--json", "-p", str(self.pid), *args))["processes"]
        return process, {s["fd"]: s for s in process["sockets"]}
