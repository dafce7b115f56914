"""The statistics page under users, rules, rings and hands of every kind: who may look, what a page that is damaged, cut short or
of ten thousand sockets does to either side, and each kind of ring in it."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually
from viewed import PORT, Viewed, echoes

NOBODY, GAMES = 65534, 60
SOCKETS = 10_000
# Cuts PAGE, which has SIZE bytes, until it is killed.
CUTTER = """
import os, random, sys
page, size, rng = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
print("cutting", flush=True)
while True:
    try:
        os.truncate(page, rng.randrange(size))
    except FileNotFoundError:
        pass
"""
VERSION = 8  # offset of Header::version (src/stats/layout.h)


class Users(Viewed):
    """A directory that gives a group the right to look."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chown(self.folder, 0, GAMES)
        os.chmod(self.folder, 0o3773)
        self.begin("udp_seen.py")
        self.tools = tempfile.mkdtemp(prefix="vma-tools-")
        self.addCleanup(shutil.rmtree, self.tools, ignore_errors=True)
        os.chmod(self.tools, 0o755)
        self.tool = shutil.copy(binary("vma_stats"), self.tools)

    def as_nobody(self, *args, groups=(), status=0):
        kept = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        return self.stats(*args, status=status, tool=self.tool,
                          prefix=["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", *kept])

    def test_a_member_of_the_group_looks_and_asks_for_nothing(self):
        page = os.stat(self.page)
        self.assertEqual((page.st_mode & 0o7777, page.st_uid, page.st_gid), (0o640, 0, GAMES))
        pid = str(self.pid)
        seen = self.as_nobody("explain", "-p", pid, groups=[GAMES])
        self.assertRegex(seen, rf"fd {self.fds['echo']} +udp +{self.b.ip}:{PORT} .* offloaded: packet ring on {self.b.dev}")
        self.assertIn("no write access", seen)
        self.assertIn(f" {self.fds['echo']:<3} Rx:", self.as_nobody("-p", pid, "-c", "1", groups=[GAMES]))
        for wish in (["-z"], ["-l", "debug"], ["--latency", "on"]):
            self.assertIn("no write access", self.as_nobody("-p", pid, "-c", "1", *wish, groups=[GAMES], status=1))
        with open(self.page, "rb") as f:
            self.assertEqual(f.read(8), b"VMASTAT\n")

    def test_nobody_else_looks(self):
        out = self.as_nobody("explain", "-p", str(self.pid), status=1)
        self.assertIn("Permission denied", out)
        self.assertNotIn("offloaded", out)


class Hostile(Viewed):
    script = "udp_seen.py"

    def talk(self, count=1):
        echoes(self, PORT, count)

    def seen_again(self):
        """Until the page has been made anew a viewer ends with a message."""
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain"])
        return done.rc == 0 and "offloaded: packet ring" in done.out

    def test_another_version(self):
        with open(self.page, "rb") as f:
            page = bytearray(f.read())
        version, = struct.unpack_from("=I", page, VERSION)
        struct.pack_into("=I", page, VERSION, version + 1)
        with open(os.path.join(self.folder, "vmastat.1"), "wb") as f:
            f.write(page)
        out = self.stats("explain")
        self.assertIn(f"vmastat.1 has layout version {version + 1}, this vma_stats reads {version}: use the vma_stats of that", out)
        self.assertIn("offloaded: packet ring", out)  # of the other page
        self.assertIn("layout version", self.stats("-p", "1", "-c", "1", status=1))

    def test_a_live_page_that_is_cut_short(self):
        """Who may write to the file may also cut it: the program goes on, and has another page soon."""
        viewer = self.b.start([binary("vma_stats"), "-k", self.folder, "-p", str(self.pid), "-v", "3", "-i", "0.05"])
        viewer.expect(r"RING_PACKET=\[0\]")
        lengths = (0, 5000, 9000)

        def anew():
            with contextlib.suppress(FileNotFoundError):
                return os.stat(self.page).st_size > max(lengths)
            return False

        for length in lengths:
            os.truncate(self.page, length)
            self.assertTrue(eventually(anew, timeout=10), self.program.out)
            self.talk(20)
            self.assertTrue(eventually(self.seen_again, timeout=10), self.program.out)
        self.assertTrue(eventually(lambda: not viewer.running(), timeout=10))
        self.assertEqual(viewer.wait(1), 0, viewer.out)
        self.assertRegex(viewer.out, r"vma_stats: .*(cut short|has ended)")
        self.program.expect("somebody has cut the statistics page short")
        _, sockets = self.json()
        self.assertEqual(sockets[self.fds["echo"]]["counters"]["rx_packets"], 60)  # nothing is forgotten
        self.assertEqual(sockets[self.fds["six"]]["path"], "kernel")

    def test_a_page_that_is_cut_all_the_time(self):
        """Another process cuts it to any length as fast as it can, while viewers read and make the program publish."""
        seed = int(os.environ.get("VMA_TEST_SEED", "2026"))
        print(f"VMA_TEST_SEED={seed}")
        cutter = self.b.start([sys.executable, "-c", CUTTER, self.page, str(os.stat(self.page).st_size), str(seed)])
        cutter.expect("cutting")
        for view in ("1", "3", "5", "explain") * 3:
            look = ["explain"] if view == "explain" else ["-v", view, "-c", "1"]
            done = self.b.run([binary("vma_stats"), "-k", self.folder, *look])
            self.assertIn(done.rc, (0, 1), done.out)
            self.talk(20)
        self.program.expect("somebody has cut the statistics page short")
        self.assertTrue(cutter.running(), cutter.out)
        cutter.kill()
        self.assertTrue(eventually(self.seen_again, timeout=10), self.program.out)
        _, sockets = self.json()
        self.assertEqual(sockets[self.fds["echo"]]["counters"]["rx_packets"], 240)

    def test_random_damage_under_both(self):
        """Bytes of a live page change at random: neither side crashes."""
        seed = int(os.environ.get("VMA_TEST_SEED", "2026"))
        print(f"VMA_TEST_SEED={seed}")
        rng = random.Random(seed)
        size = os.stat(self.page).st_size
        with open(self.page, "r+b", buffering=0) as page:
            for _ in range(15):
                for _ in range(rng.choice((1, 20, 400))):
                    page.seek(rng.randrange(size))
                    page.write(rng.randbytes(rng.choice((1, 4, 8))))
                for view in ("3", "4"):
                    done = self.b.run([binary("vma_stats"), "-F", "-k", self.folder, "-p", str(self.pid), "-v", view, "-c", "1"])
                    self.assertIn(done.rc, (0, 1), done.out)
                self.talk(2)
        self.assertTrue(self.program.running())

    def test_frames_that_nobody_takes_have_a_name(self):
        self.talk()
        self.program.send_signal(signal.SIGSTOP)
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        count = 30_000
        for _ in range(count):
            peer.sendto(bytes(1400), (self.b.ip, PORT))
        self.program.send_signal(signal.SIGCONT)

        def all_counted():
            process, _ = self.json()
            ring, = process["rings"]
            return ring["rx_frames"] + ring["rx_dropped"] >= count + 1 and ring

        self.assertTrue(eventually(all_counted, timeout=20))
        ring = all_counted()
        self.assertEqual(ring["rx_frames"] + ring["rx_dropped"], count + 1)
        self.assertEqual(ring["drops"].get("ring_full"), ring["rx_dropped"], ring["drops"])
        self.assertRegex(self.stats("-p", str(self.pid), "-v", "3", "-c", "1"),
                         rf"(?m)^Dropped: +{ring['rx_dropped']} ring_full: ring full: frames were not taken out of it in time$")
        self.assertIn(f"has dropped {ring['rx_dropped']} frames", self.stats("doctor"))


class ManySockets(Viewed):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def test_ten_thousand(self):
        self.begin("udp_many.py", SOCKETS)
        ring = rf"offloaded: packet ring on {self.b.dev}"
        explained = self.stats("explain", "-p", str(self.pid))
        self.assertEqual(len(re.findall(rf"(?m)^  fd \d+ +udp +{self.b.ip}:\d+ .* {ring}$", explained)), SOCKETS)
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(10)
        chosen = random.Random(1).sample(range(SOCKETS), 100)
        # Viewers that are killed in the middle of it.
        for i in range(5):
            viewer = self.b.start([binary("vma_stats"), "-k", self.folder, "-p", str(self.pid), "-v", "3", "-i", "0"])
            viewer.expect("Fd=")
            viewer.kill()
            for n in chosen[i * 20 : i * 20 + 20]:
                peer.sendto(b"hello", (self.b.ip, PORT + n))
                self.assertEqual(peer.recv(100), b"hello")
        process, sockets = self.json()
        echoed = {s["local"]: s["counters"]["rx_packets"] for s in sockets.values() if s["counters"]["rx_packets"]}
        self.assertEqual(echoed, {f"{self.b.ip}:{PORT + n}": 1 for n in chosen})
        self.assertEqual(sum(s["path"] == "offloaded" for s in sockets.values()), SOCKETS)
        self.assertEqual(process["rings"][0]["rx_frames"], len(chosen))
        self.assertEqual(len(re.findall(r"(?m)^udp   Yes ", self.stats("-v", "5"))), SOCKETS)
        rates = self.stats("-p", str(self.pid), "-d", "2", "-c", "2", "-i", "0")
        self.assertEqual(len(re.findall(r"(?m)^ \d+ +Rx:", rates)), 2 * SOCKETS)
        self.program.stdin.close()
        self.assertEqual(self.program.wait(30), 0, self.program.out)


class Ruled(Viewed):
    """The rules in force: what each decided, and those that never can."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.rules = os.path.join(self.folder, "rules.conf")
        with open(self.rules, "w", encoding="ascii") as f:
            f.write(f"application-id * *\nuse vma udp_receiver *:{PORT}\nuse os udp_receiver {self.b.ip}:{PORT}\n"
                    "use os udp_receiver *:1\napplication-id other *\nuse os tcp_server *:*\n")
        self.begin("udp_seen.py", VMA_CONFIG_FILE=self.rules)

    def test_rules(self):
        pid = str(self.pid)
        table = self.stats("-p", pid, "--dump=rules")
        self.assertRegex(table, rf"(?m)^ +2 +[1-9]\d*  use vma udp_receiver \*:{PORT} *$")
        self.assertRegex(table, rf"(?m)^ +3 +0  use os udp_receiver {self.b.ip}:{PORT} +never matches: the rule in line 2 takes it before$")
        self.assertRegex(table, r"(?m)^ +4 +0  use os udp_receiver \*:1 *$")
        self.assertRegex(table, r"(?m)^ +6 +0  use os tcp_server \*:\* +for another program$")
        process, _ = self.json()
        self.assertEqual([(r["line"], r["use"], r["covered_by"]) for r in process["rules"]["list"]],
                         [(2, "deciding", None), (3, "covered", 2), (4, "deciding", None), (6, "other_program", None)])
        finding = rf"(?m)^python3\S* \(pid {pid}\): rule 'use os udp_receiver {self.b.ip}:{PORT}' \(line 3\) never matches: .*\n    (sed .*)$"
        found = re.search(finding, self.stats("doctor"))
        self.assertIsNotNone(found, self.stats("doctor"))
        # The command is for a shell that has vma_stats on its path; its directory of pages is this test's.
        command = found.group(1).replace("vma_stats", f"{binary('vma_stats')} -k {self.folder}")
        done = self.b.run(["sh", "-c", command])
        self.assertEqual(done.rc, 0, done.out)
        self.assertNotRegex(self.stats("doctor"), "never matches")


if __name__ == "__main__":
    case.main()
