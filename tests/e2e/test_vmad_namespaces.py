"""vmad of a host serves other network namespaces: unprivileged containers that have its socket mounted, as its policy allows. A container
gets rings on its own interfaces, for its own sockets; who shows a socket of somebody else's namespace gets nothing."""

import os
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import test_vmad as vmad
from host_broker import NOBODY, SOCKET, Box
from netns import binary, eventually
from tcx import left

# Connects to vmad with a socket that it has got, and tells what comes of it.  argv: PATH SOCKET
KNOCKS = """import socket, sys
s = socket.socket(fileno=int(sys.argv[2]))
s.settimeout(10)
s.connect(sys.argv[1])
print("refused" if s.recv(1) == b"" else "answered")
"""
REFUSED = r"process \d+ of user {} is refused: the policy denies it its network namespace"


class BoxCase(vmad.HostCase):
    """The host's vmad is in b; the peer of the containers is in a."""

    def start_with(self, policy):
        self.policy = os.path.join(self.folder, "policy")
        self.says(policy)
        self.start("--group", "games", "--policy", self.policy)
        self.box = Box(self.host, self.a)
        self.addCleanup(self.box.end)

    def says(self, policy):
        with open(self.policy, "w", encoding="ascii") as f:
            f.write(policy)

    def reloaded(self, policy):
        self.says(policy)
        before = len(self.host.process.out)
        self.host.process.send_signal(signal.SIGHUP)
        self.expect_news(self.host.process, before, "(?s)the policy has been read again.*the policy has been read again")

    def in_box(self):
        """A program in the container, which what HostCase does is about from here on."""
        self.b = self.box
        return self.program()

    def peer_ip(self):
        return self.b.outside_ip

    def workers(self):
        pid = self.host.process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(child) for child in f.read().split()]

    def nothing_is_left(self):
        """What would keep the container's network."""
        self.assertTrue(eventually(lambda: not self.workers(), 10), self.host.process.out)
        self.assertTrue(eventually(lambda: left(self.box) == [], 10), left(self.box))


class Sockperf(BoxCase):
    def test_in_a_container(self):
        self.start_with("any in own\n")
        self.b = self.box
        self.expect_sockperf()
        self.nothing_is_left()


class Boxes(BoxCase):
    def test_a_container(self):
        self.start_with("any in own\n")
        program = self.in_box()
        self.assertEqual({user for _, user, *_ in self.threads(program)}, {0})  # its root
        self.every_way(program, listened=False)
        self.assertEqual(len(self.workers()), 1)
        # What the daemon does for a program of its own namespace it does for this one, too.
        old, before = self.client(self.port + 2), len(program.out)
        self.expect_offloaded(program, old)
        self.host.again(self.box.holder.pid, "--group", "games", "--policy", self.policy)
        self.expect_news(program, before, "goes on for this process: 1 rings, [1-9] listeners")
        self.expect_offloaded(program, self.client(self.port + 2))
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5), -signal.SIGKILL)
        self.assertEqual(old.recv(1), b"")
        self.nothing_is_left()

    def test_the_policy(self):
        """It has to name the namespace; and a worker hears of its changes."""
        self.start_with("any\n")
        program = self.in_box()
        self.tell(program, "listen", self.port)
        self.expect_kernel(program, self.client(self.port))
        program.expect(vmad.NOT_SERVED)
        self.host.process.expect(REFUSED.format(NOBODY))
        self.assertEqual(self.workers(), [])
        self.says(f"any in own port {self.port + 1}\n")
        before = len(self.host.process.out)
        self.host.process.send_signal(signal.SIGHUP)
        self.expect_news(self.host.process, before, "the policy has been read again")
        second = self.in_box()
        self.tell(second, "listen", self.port + 1)
        self.expect_offloaded(second, self.client(self.port + 1))
        self.tell(second, "listen", self.port + 2)
        self.expect_kernel(second, self.client(self.port + 2))
        self.reloaded(f"any in own port {self.port + 3}\n")
        self.tell(second, "listen", self.port + 3)
        self.expect_offloaded(second, self.client(self.port + 3))
        for process in (program, second):
            process.kill()
        self.nothing_is_left()

    def test_by_name(self):
        self.start_with(f"user nobody in trade-*  interface {Box.DEV}\n")
        names = "mkdir /run/netns && touch /run/netns/other /run/netns/trade-1 && mount --bind /proc/{}/ns/net /run/netns/{}"
        self.assert_ok(self.host.space.run(["sh", "-c", names.format(self.box.holder.pid, "other")], prefix=self.host.enter()))
        program = self.in_box()
        self.tell(program, "listen", self.port)
        self.expect_kernel(program, self.client(self.port))
        self.assert_ok(self.host.space.run(["mount", "--bind", f"/proc/{self.box.holder.pid}/ns/net", "/run/netns/trade-1"],
                                           prefix=self.host.enter()))
        second = self.in_box()
        self.tell(second, "listen", self.port + 1)
        self.expect_offloaded(second, self.client(self.port + 1))

    def with_socket(self, line, s):
        return subprocess.run([*map(str, line), str(s.fileno())], pass_fds=[s.fileno()], capture_output=True, text=True, timeout=30, check=False)

    def test_who_shows_what_is_not_his_gets_nothing(self):
        self.start_with("any in own rings 2\n")
        # Another user with a socket of the container's, and its own with one of a namespace that root made.
        for space, user in ((self.box, vmad.DAEMON), (self.a, NOBODY)):
            with space.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                done = self.with_socket([*self.host.user(user=user), "/usr/bin/python3", "-c", KNOCKS, SOCKET], s)
            self.assertEqual((done.returncode, done.stdout), (0, "refused\n"), done.stderr)
            self.host.process.expect(REFUSED.format(user))
        self.assertEqual(self.workers(), [])
        # Sockets of others, and of another namespace, by one that is served.
        victim = self.in_box()
        self.tell(victim, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(victim, s)
        b = self.host.space
        self.assert_ok(b.run(["ip", "address", "add", f"{self.box.ip}/32", "dev", "lo"]))
        self.addCleanup(b.run, ["ip", "address", "del", f"{self.box.ip}/32", "dev", "lo"])
        with b.socket(socket.AF_INET, socket.SOCK_STREAM) as foreign:
            foreign.bind((self.box.ip, self.port + 7))
            foreign.listen()
            done = self.with_socket(self.box.command([binary("ring_thief"), binary("vmad"), self.box.ip, self.port]), foreign)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("a listener of another namespace: ", done.stdout)
        self.assertIn("all refused", done.stdout)
        self.expect_offloaded(victim, s)
        self.expect_offloaded(victim, self.client(self.port))


if __name__ == "__main__":
    case.main()
