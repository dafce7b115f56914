"""Two unprivileged containers on a bridge, each with a network of its own: their connections go by shared memory where the policy of the
host's vmad puts them together, and by the kernel where it does not.

The oracle: the kernel's count of received TCP segments in the container stands nearly still while the bytes move.
"""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import test_vmad as vmad
from host_broker import Box
from netns import binary, eventually
from test_shm import MOVED, mapped

SHARE = "any in own rings 0 share trade\n"
ports = itertools.count(26000)


class ShareCase(vmad.HostCase):
    def start_with(self, policy):
        self.policy = os.path.join(self.folder, "policy")
        self.says(policy)
        self.start("--group", "games", "--policy", self.policy)
        self.must(self.a, "link add br0 type bridge")
        self.addCleanup(self.a.run, ["ip", "link", "del", "br0"])
        self.must(self.a, "link set br0 up")

    def must(self, space, line):
        self.assert_ok(space.run(["ip", *line.split()]))

    def says(self, policy):
        with open(self.policy, "w", encoding="ascii") as f:
            f.write(policy)

    def on_bridge(self, number, bridge="br0"):
        box = Box(self.host, self.a)
        self.addCleanup(box.end)
        self.must(self.a, f"link set {box.name_outside} master {bridge}")
        box.address = f"10.9.0.{number}"
        self.must(box, f"address add {box.address}/24 dev {box.dev}")
        return box

    def line(self, *words):
        script = shutil.copy(os.path.join(case.SUPPORT, "shm_talk.py"), self.folder)
        return ["/usr/bin/python3", "-B", script, *words]

    def quiet(self, **variables):
        return {**self.copied(VMA_SHM_AFTER=8, **variables), "VMA_TRACELEVEL": "info"}

    def serve(self, box, port, *words):
        process = box.start(self.line("serve", box.address, port, *words), env=self.quiet())
        process.expect("ready")
        return process

    def talk(self, server, client, *words):
        """The segments that the kernel of the client's container saw."""
        port = next(ports)
        serving = self.serve(server, port, *words)
        before = client.counters("Tcp")["InSegs"]
        done = client.run(self.line("call", server.address, port, *words), env=self.quiet())
        dies = words[1] if words[0] == "die" else None
        self.assertEqual((done.rc, serving.wait(20)), (-9 if dies == "client" else 0, -9 if dies == "server" else 0),
                         done.out + serving.out + self.host.process.out)
        return client.counters("Tcp")["InSegs"] - before


class Share(ShareCase):
    def test_two_containers(self):
        self.start_with(SHARE)
        one, two = self.on_bridge(1), self.on_bridge(2)
        self.assertLess(self.talk(one, two, "echo", 20000, 64), MOVED)
        self.assertLess(self.talk(two, one, "echo", 200, 1000000), 3500)
        for who in ("server", "client"):
            for how in ("fork", "pass", "exec"):
                with self.subTest(how=how, who=who):
                    self.talk(one, two, how, who, 300)
            with self.subTest(how="die", who=who):
                self.talk(one, two, "die", who, 500)


    def test_who_is_not_put_together(self):
        """Without the policy, by another name, and on an address of the own namespace."""
        self.start_with("any in own rings 0\n")
        one, two = self.on_bridge(1), self.on_bridge(2)
        self.assertGreater(self.talk(one, two, "echo", 4000, 64), 4000)
        self.name(one, "trade-1")
        self.reloaded("any in trade-* rings 0 share trade\nany in own rings 0 share others\n")
        self.assertGreater(self.talk(one, two, "echo", 4000, 64), 4000)
        self.reloaded("any in trade-* rings 0 share trade\nany in own rings 0 share trade\n")
        self.assertLess(self.talk(one, two, "echo", 20000, 64), MOVED)
        self.assertLess(self.talk(one, one, "echo", 20000, 64), MOVED)
        # A port that the policy does not give it is not published.
        self.reloaded("any in own rings 0 share trade port 1-1000\n")
        self.assertGreater(self.talk(one, two, "echo", 4000, 64), 4000)

    def name(self, box, name):
        line = f"mkdir -p /run/netns && touch /run/netns/{name} && mount --bind /proc/{box.holder.pid}/ns/net /run/netns/{name}"
        self.assert_ok(self.host.space.run(["sh", "-c", line], prefix=self.host.enter()))

    def reloaded(self, policy):
        self.says(policy)
        before = len(self.host.process.out)
        self.host.process.send_signal(signal.SIGHUP)
        self.expect_news(self.host.process, before, "the policy has been read again")

    def test_a_thief(self):
        """A member of the group whose own network has both addresses, too: it publishes, is offered the connection, says it is its own."""
        self.start_with(SHARE)
        one, two = self.on_bridge(1), self.on_bridge(2)
        thief = Box(self.host, self.a)
        self.addCleanup(thief.end)
        for box in (one, two):
            self.must(thief, f"address add {box.address}/32 dev lo")
        port = next(ports)
        serving = self.serve(one, port, "echo", 20000, 64)
        with self.a.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as foreign:
            shutil.copy(binary("share_thief"), self.folder)
            line = thief.command([os.path.join(self.folder, "share_thief"), one.address, port, foreign.fileno()])
            with subprocess.Popen(list(map(str, line)), pass_fds=[foreign.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as steals:
                said = []
                for text in steals.stdout:
                    said.append(text)
                    if text == "waiting\n":
                        break
                before = two.counters("Tcp")["InSegs"]
                done = two.run(self.line("call", one.address, port, "echo", 20000, 64), env=self.quiet())
                said.append(steals.communicate(timeout=30)[0])
        said = "".join(said)
        self.assertEqual((steals.returncode, done.rc, serving.wait(20)), (0, 0, 0), said + done.out + serving.out + self.host.process.out)
        self.assertIn("all refused", said)
        self.assertLess(two.counters("Tcp")["InSegs"] - before, MOVED, said)
        self.assertIn("has no proof that it is the other end", self.host.process.out)


class More(ShareCase):
    def serve_many(self, box, port):
        for name in ("echo_threads.py", "duplex.py"):
            shutil.copy(os.path.join(case.SUPPORT, name), self.folder)
        process = box.start(["/usr/bin/python3", "-B", os.path.join(self.folder, "echo_threads.py"), box.address, port], env=self.quiet())
        process.expect("ready")
        return process

    def test_vmad_is_started_again(self):
        """What goes by memory goes on while it is away and afterwards; and new neighbours are introduced by the next one."""
        self.start_with(SHARE)
        one, two = self.on_bridge(1), self.on_bridge(2)
        port = next(ports)
        serving = self.serve_many(one, port)
        old = two.start(self.line("call", one.address, port, "echo", 10**8, 64), env=self.quiet())
        self.assertTrue(eventually(lambda: mapped(serving.pid), 10), serving.out + old.out)
        self.expect_still(two, old)
        self.host.kill()
        self.expect_still(two, old)
        self.host.resume(one.holder.pid, "--group", "games", "--policy", self.policy)
        self.expect_still(two, old)
        before = mapped(serving.pid)
        for _ in range(2):
            new = two.start(self.line("call", one.address, port, "echo", 10**8, 64), env=self.quiet())
            self.assertTrue(eventually(lambda: mapped(serving.pid) > before, 15), serving.out + new.out + self.host.process.out)
            before = mapped(serving.pid)
        self.expect_still(two, old)
        for process in (serving, old, new):
            self.assertTrue(process.running(), process.out)

    def expect_still(self, box, process):
        """Its connection is not the kernel's: that sees next to nothing while many messages go."""
        before = process.cpu_seconds(), box.counters("Tcp")["InSegs"]
        self.assertTrue(eventually(lambda: process.cpu_seconds() > before[0] + 0.3, 20), process.out)
        self.assertLess(box.counters("Tcp")["InSegs"] - before[1], 300, process.out)

    def test_two_with_the_same_address(self):
        """In two networks; both publish it, and only one has the other end."""
        self.start_with(SHARE)
        self.must(self.a, "link add br1 type bridge")
        self.addCleanup(self.a.run, ["ip", "link", "del", "br1"])
        self.must(self.a, "link set br1 up")
        one, other = self.on_bridge(1), self.on_bridge(1, "br1")
        two, fourth = self.on_bridge(2), self.on_bridge(2, "br1")
        port = next(ports)
        for server in (one, other):
            self.serve_many(server, port)
        for client, server in ((two, one), (fourth, other)):
            before = client.counters("Tcp")["InSegs"]
            done = client.run(self.line("call", server.address, port, "echo", 20000, 64), env=self.quiet())
            self.assert_ok(done)
            self.assertLess(client.counters("Tcp")["InSegs"] - before, MOVED, self.host.process.out)


if __name__ == "__main__":
    case.main()
