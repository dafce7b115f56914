"""sshd and ssh, preloaded: privilege separation, the child's system call filter and the re-exec of sshd all meet a live
connection. Own keys and configuration in a temporary directory, root's login by key, inside the namespaces."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import preload_env

PORT = 2200
PRIVSEP = "/run/sshd"  # sshd wants it to be there

SSHD = """
ListenAddress {ip}:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
LogLevel VERBOSE
Subsystem sftp internal-sftp
"""


def key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL)


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


class Login(case.NetCase):
    preload = (True, True)  # client, server
    size = 50 << 20

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp(prefix="vt-ssh-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        if not os.path.isdir(PRIVSEP):
            os.mkdir(PRIVSEP, 0o755)
            cls.addClassCleanup(os.rmdir, PRIVSEP)
        for name in ("host", "user"):
            key(f"{cls.folder}/{name}")
        shutil.copy(f"{cls.folder}/user.pub", f"{cls.folder}/authorized")
        with open(f"{cls.folder}/data", "wb") as f:
            for i in range(cls.size >> 20):
                f.write(hashlib.shake_128(b"%d" % i).digest(1 << 20))
        cls.sha = digest(f"{cls.folder}/data")

    def setUp(self):
        with open(f"{self.folder}/sshd_config", "w") as f:
            f.write(SSHD.format(ip=self.b.ip, port=PORT, folder=self.folder))
        env = preload_env(VMA_TRACELEVEL="warning") if self.preload[1] else None
        self.server = self.b.start(["/usr/sbin/sshd", "-D", "-e", "-f", f"{self.folder}/sshd_config"], env=env)
        self.b.wait_bound("tcp", PORT, process=self.server)

    def client(self, program, *words, stdin=None):
        """ssh or scp to its end, its input from a file."""
        options = ["-i", f"{self.folder}/user", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                   "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR", "-F", "none"]
        line = shlex.join([program, *options, *map(str, words)]) + f" < {stdin or '/dev/null'}"
        env = preload_env(VMA_TRACELEVEL="warning") if self.preload[0] else None
        done = self.a.run(["sh", "-c", "exec " + line], env=env, timeout=60)
        self.assertEqual(done.rc, 0, f"{done.out}\n--- sshd:\n{self.server.out}")
        return done.out

    def ssh(self, command, stdin=None):
        return self.client("ssh", "-p", PORT, f"root@{self.b.ip}", command, stdin=stdin)

    def test_command(self):
        self.assertEqual(self.ssh("echo logged in; id -u"), "logged in\n0\n")
        self.assertEqual(self.ssh("exit 0"), "")
        self.assertTrue(self.server.running(), self.server.out)
        self.assertNotIn("fatal", self.server.out)

    def test_input(self):
        """A file through the standard input of ssh."""
        target = f"{self.folder}/by-input"
        self.ssh(f"cat > {target}", stdin=f"{self.folder}/data")
        self.assertEqual(digest(target), self.sha)

    def test_copy(self):
        there, back = f"{self.folder}/there", f"{self.folder}/back"
        self.client("scp", "-q", "-P", PORT, f"{self.folder}/data", f"root@{self.b.ip}:{there}")
        self.assertEqual(digest(there), self.sha)
        self.client("scp", "-q", "-P", PORT, f"root@{self.b.ip}:{there}", back)
        self.assertEqual(digest(back), self.sha)
        self.assertTrue(self.server.running(), self.server.out)


class OnlyServer(Login):
    preload = (False, True)


class OnlyClient(Login):
    preload = (True, False)


class Kernel(Login):
    """The same without the library: the test itself is right."""
    preload = (False, False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
