"""Seen: vma_stats tells from outside which sockets of a preloaded program are accelerated, over which ring, or why not; its
counters are the datagrams that the peer sent; and a process that stops, dies or ends is told, too."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually

PORT = 7400
COUNT, SIZE = 200, 2048 // 2


class Viewed(case.NetCase):
    """A preloaded program in namespace b, with a directory for its page, and vma_stats there."""

    script = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.program = self.python(self.b, self.script, self.b.ip, PORT, preload=True, start=True, stdin=subprocess.PIPE,
                                   env={"VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "warning"})
        self.pid = int(self.program.expect(r"ready (\d+)").group(1))
        self.fds = {name: int(fd) for name, fd in re.findall(r"(?m)^(\w+) (\d+)$", self.program.out) if name != "ready"}
        self.page = os.path.join(self.folder, f"vmastat.{self.pid}")

    def stats(self, *args, status=0):
        done = self.b.run([binary("vma_stats"), "-k", self.folder, *args], timeout=20)
        self.assertEqual(done.rc, status, done.out)
        return done.out

    def explained(self, name):
        return re.search(rf"(?m)^ +fd {self.fds[name]} .*$", self.stats("explain", "-p", str(self.pid))).group(0)


class Seen(Viewed):
    script = "udp_seen.py"

    def talk(self, count):
        """The peer, a kernel socket, sends `count` datagrams and has each back before the next."""
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(5)
        for i in range(count):
            text = i.to_bytes(4, "big") * (SIZE // 4)
            peer.sendto(text, (self.b.ip, PORT))
            self.assertEqual(peer.recv(65536), text)

    def test_each_socket_is_explained(self):
        with self.past_the_kernel(self.b, COUNT):
            self.talk(COUNT)
        self.assertRegex(self.explained("echo"), rf"udp +{self.b.ip}:{PORT} +-> \* +offloaded: packet ring on {self.b.dev}")
        self.assertRegex(self.explained("loopback"), rf"udp +127\.0\.0\.1:{PORT} .* kernel: loopback: .*this host")
        self.assertRegex(self.explained("unused"), r"udp .* kernel so far: undecided: no decision yet")
        self.assertRegex(self.explained("six"), r"udp6 .* kernel: ipv6: IPv6 sockets are not offloaded yet; use AF_INET")

    def test_counters_are_the_datagrams_sent(self):
        self.talk(COUNT)
        page = json.loads(self.stats("--json", "-p", str(self.pid)))
        (process,) = page["processes"]
        (echo,) = [s for s in process["sockets"] if s["fd"] == self.fds["echo"]]
        seen = echo["counters"]
        self.assertEqual((echo["path"], echo["reason"], echo["rings"]), ("offloaded", "none", [0]))
        self.assertEqual((seen["rx_packets"], seen["rx_bytes"]), (COUNT, COUNT * SIZE), seen)
        self.assertEqual(seen["rx_os_packets"], 0, seen)
        # The first answer may go by the kernel, which then resolves the neighbour.
        self.assertEqual(seen["tx_packets"] + seen["tx_os_packets"], COUNT, seen)
        self.assertLessEqual(seen["tx_os_packets"], 2, seen)
        (ring,) = process["rings"]
        self.assertEqual((ring["kind"], ring["interface"], ring["open"]), ("packet", self.b.dev, True))
        self.assertGreaterEqual(ring["rx_frames"], COUNT)
        self.assertGreaterEqual(ring["tx_frames"], seen["tx_packets"])
        # More datagrams, and the counters follow, in the view that VMA's users know.
        self.talk(COUNT)
        basic = self.stats("-p", str(self.pid), "-c", "1")
        self.assertRegex(basic, rf"\Avmastat: stats for application: python3\S* with pid: {self.pid}\n fd  +-+ total offloaded")
        line = re.search(rf"(?m)^ {self.fds['echo']:<3} Rx: +(\d+) +(\d+) +\d+ +0 +[\d.]+ +(\d+) ", basic)
        self.assertIsNotNone(line, basic)
        self.assertEqual(tuple(map(int, line.groups())), (2 * COUNT, 2 * COUNT * SIZE // 1024, 0), basic)

    def test_netstat_view(self):
        lines = self.stats("-v", "5").splitlines()
        self.assertEqual(lines[0].split(), "Proto Offloaded Recv-Q Send-Q Local Address Foreign Address State Inode PID/Program "
                                           "name".split())
        rows = {f[4]: f for f in (line.split() for line in lines[1:])}
        inode = os.stat(f"/proc/{self.pid}/fd/{self.fds['echo']}").st_ino
        self.assertEqual(rows[f"{self.b.ip}:{PORT}"][:4] + rows[f"{self.b.ip}:{PORT}"][5:7],
                         ["udp", "Yes", "0", "0", "0.0.0.0:*", str(inode)])
        self.assertRegex(rows[f"{self.b.ip}:{PORT}"][7], rf"^{self.pid}/python3")
        self.assertEqual(rows[f"127.0.0.1:{PORT}"][:2], ["udp", "No"])

    def test_a_fork_leaves_the_page_alone(self):
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(5)
        peer.sendto(b"fork", (self.b.ip, PORT))
        self.assertEqual(peer.recv(100), b"fork")
        self.talk(COUNT)
        self.assertIn("offloaded: packet ring", self.explained("echo"))

    def test_end_of_the_process(self):
        self.assertEqual(os.stat(self.page).st_mode & 0o7777, 0o640)
        self.program.stdin.close()
        self.assertEqual(self.program.wait(10), 0, self.program.out)
        self.assertFalse(os.path.exists(self.page))
        self.assertIn("no page", self.stats("explain", "-p", str(self.pid), status=1))

    def test_killed(self):
        self.program.send_signal(signal.SIGKILL)
        self.program.wait(10)
        self.assertTrue(os.path.exists(self.page))
        self.stats("-F", "-c", "1", status=1)
        self.assertTrue(os.path.exists(self.page))
        self.assertIn("no preloaded process", self.stats("explain", status=1))
        self.assertFalse(os.path.exists(self.page))

    def test_stopped(self):
        self.talk(1)
        self.program.send_signal(signal.SIGSTOP)

        def stopped():
            # Each thread by itself, a moment apart.
            states = []
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{task}/stat") as f:
                    states.append(f.read().rpartition(")")[2].split()[0])
            return set(states) == {"T"}

        self.assertTrue(eventually(stopped))
        out = self.stats("explain", "-p", str(self.pid))
        self.assertIn("does not answer", out)
        self.assertIn("offloaded: packet ring", out)
        self.program.send_signal(signal.SIGCONT)
        self.talk(1)

    def test_bad_pages_and_options(self):
        for name, content in (("vmastat.1", b"rubbish"), ("vmastat.2", b"")):
            with open(os.path.join(self.folder, name), "wb") as f:
                f.write(content)
        out = self.stats("explain")
        self.assertRegex(out, r"vmastat\.1 is cut short")
        self.assertRegex(out, r"vmastat\.2 is cut short")
        self.assertIn("offloaded: packet ring", out)
        self.assertIn("--interval", self.stats("-v", "9", status=1))
        self.assertIn("--interval", self.stats("-p", "none", status=1))
        self.assertIn("--interval", self.stats("-n", "no-such-program", status=1))


class SeenTcp(Viewed):
    script = "tcp_seen.py"

    def test_connection_and_listeners(self):
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(client.close)
        client.settimeout(5)
        client.connect((self.b.ip, PORT))
        self.fds["connection"] = int(self.program.expect(r"connection (\d+)").group(1))
        client.sendall(b"x" * COUNT)
        received = b""
        while len(received) < COUNT:
            received += client.recv(65536)
        ring = rf"offloaded: packet ring on {self.b.dev}"
        peer = "%s:%d" % client.getsockname()
        self.assertRegex(self.explained("listener"), rf"tcp +{self.b.ip}:{PORT} +-> \* +{ring}")
        self.assertRegex(self.explained("connection"), rf"tcp +{self.b.ip}:{PORT} +-> {peer} +{ring}")
        self.assertRegex(self.explained("loopback"), r"tcp +127\.0\.0\.1:\d+ .* kernel")
        (process,) = json.loads(self.stats("--json", "-p", str(self.pid)))["processes"]
        sockets = {s["fd"]: s for s in process["sockets"]}
        connection = sockets[self.fds["connection"]]
        self.assertEqual((connection["tcp_state"], connection["counters"]["rx_bytes"], connection["counters"]["tx_bytes"]),
                         ("ESTABLISHED", COUNT, COUNT))
        self.assertEqual((connection["receive_queue"], connection["send_queue"]), (0, 0))
        self.assertEqual(sockets[self.fds["listener"]]["tcp_state"], "LISTEN")


if __name__ == "__main__":
    case.main()
