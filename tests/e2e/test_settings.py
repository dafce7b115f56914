"""Each setting changed and its effect observed: a table of settings and what tells of them, from the peer (the kernel's
TCP_INFO of the other end, its counters), from /proc or from the statistics. The same program runs with the default before.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually

PORT = 7950
TIMESTAMPS, SCALING = 1, 4  # bits of tcpi_options


class Settings(case.NetCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="vma_settings."))
        self.tcp = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(self.tcp.close)
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.tcp.bind((self.a.ip, PORT))
        self.tcp.listen(8)
        self.tcp.settimeout(20)

    def start(self, what, *args, **variables):
        program = self.python(self.b, "settings.py", what, *args, preload=True, start=True, stdin=subprocess.PIPE,
                              env={"VMA_STATS_SHMEM_DIR": self.folder, **variables})
        program.expect(r"(?m)^ready$", 20)
        return program

    def end(self, program):
        program.stdin.close()
        self.assertEqual(program.wait(20), 0, program.out)

    def process(self, program):
        """In vma_stats."""
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "--json", "-p", str(program.pid)], timeout=20)
        self.assert_ok(done)
        (process,) = json.loads(done.out)["processes"]
        return process

    def connected(self, **variables):
        """What both ends of a connection to the kernel say."""
        program = self.start("connect", self.a.ip, PORT, **variables)
        with self.tcp.accept()[0] as peer:
            info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            ours = next(s for s in self.process(program)["sockets"] if s["remote"] == f"{self.a.ip}:{PORT}")
            self.assertEqual(ours["path"], "offloaded")
            seen = {"scale": info[6] & 15, "mss": int.from_bytes(info[16:20], "little"),
                    "timestamps": info[5] & TIMESTAMPS, "scaling": info[5] & SCALING,
                    "algorithm": ours["tcp"]["congestion_control"], "dummies": ours["counters"]["tx_dummy"]}
        self.end(program)
        return seen

    def test_of_a_connection(self):
        """Settings that do not meet, and what tells of each; without them before."""
        header = 12  # of timestamps, in each segment
        default = self.connected()
        for observable, value in (("mss", 1460 - header), ("timestamps", TIMESTAMPS), ("scaling", SCALING), ("algorithm", "cubic"),
                                  ("dummies", 0)):
            self.assertEqual(default[observable], value, observable)
        for settings in (
                {("VMA_MSS", "1000"): ("mss", 1000 - header), ("VMA_WINDOW_SCALING", "3"): ("scale", 3),
                 ("VMA_TCP_CC_ALGO", "0"): ("algorithm", "reno"),
                 ("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "1"): ("dummies", 5)},
                {("VMA_MTU", "1000"): ("mss", 960 - header), ("VMA_WINDOW_SCALING", "-1"): ("scaling", 0)},
                {("VMA_TCP_TIMESTAMP_OPTION", "0"): ("timestamps", 0), ("VMA_WINDOW_SCALING", "14"): ("scale", 14)}):
            seen = self.connected(**dict(settings.keys()))
            for setting, (observable, value) in settings.items():
                self.assertEqual(seen[observable], value, setting)

    def test_file(self):
        """The same by a file; the environment stands above it."""
        path = os.path.join(self.folder, "settings.json")
        with open(path, "w") as f:
            json.dump({"VMA_MSS": 1000, "VMA_TCP_TIMESTAMP_OPTION": 0, "VMA_WINDOW_SCALING": 3}, f)
        seen = self.connected(VMA_CONFIG_JSON=path, VMA_WINDOW_SCALING="5")
        self.assertEqual((seen["mss"], seen["timestamps"], seen["scale"]), (1000, 0, 5))
        program = self.start("listen", self.b.ip, PORT, VMA_CONFIG_JSON=path, VMA_WINDOW_SCALING="5")
        origins = {o["name"]: o["origin"] for o in self.process(program)["options"]}
        self.assertEqual((origins["VMA_MSS"], origins["VMA_WINDOW_SCALING"], origins["VMA_RX_POLL"]), ("file", "environment", "default"))
        self.end(program)

    def test_listener(self):
        for value, path in (("0", "undecided"), ("1", "offloaded")):
            program = self.start("listen", self.b.ip, PORT, VMA_LISTEN_EAGER=value)
            (listener,) = (s for s in self.process(program)["sockets"] if s["local"] == f"{self.b.ip}:{PORT}")
            self.assertEqual(listener["path"], path)
            self.end(program)

    def test_datagrams(self):
        """Packets above VMA_MTU leave in fragments, which the peer's kernel counts."""
        for value, fragments in (("0", 0), ("1000", 2)):
            with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                peer.bind((self.a.ip, PORT))
                peer.settimeout(20)
                before = self.a.counters("Ip")["ReasmReqds"]
                program = self.python(self.b, "settings.py", "datagram", self.a.ip, PORT, 1200, preload=True, start=True,
                                      stdin=subprocess.PIPE, env={"VMA_MTU": value, "VMA_STATS_SHMEM_DIR": ""})
                peer.sendto(b"answer", peer.recvfrom(2000)[1])
                self.assertEqual(len(peer.recv(2000)), 1200)
                self.assertEqual(self.a.counters("Ip")["ReasmReqds"] - before, fragments)
                self.end(program)

    def test_internal_thread(self):
        """The thread is where the settings put it."""
        tasks = os.path.join(self.folder, "tasks")
        with open(tasks, "w"):
            pass
        program = self.start("listen", self.b.ip, PORT, VMA_INTERNAL_THREAD_CPUSET=self.folder, VMA_INTERNAL_THREAD_AFFINITY="0",
                             VMA_LISTEN_EAGER="1")
        folder = f"/proc/{program.pid}/task"

        def thread():
            for task in os.listdir(folder):
                with open(f"{folder}/{task}/comm") as f:
                    if f.read() == "vma\n":
                        return task
            return None

        task = eventually(thread)
        self.assertIsNotNone(task)

        def joined():
            with open(tasks) as f:
                return f.read()

        self.assertEqual(eventually(joined), task + "\n")
        with open(f"{folder}/{task}/status") as f:
            self.assertIn("Cpus_allowed_list:\t0\n", f.read())
        self.end(program)

    def test_crash(self):
        for value, told in (("0", 0), ("1", 1)):
            done = self.python(self.b, "settings.py", "crash", self.b.ip, PORT, preload=True, env={"VMA_HANDLE_SIGSEGV": value})
            self.assertEqual(done.rc, -11, done.out)
            self.assertIn("about to crash", done.out)
            self.assertEqual(len(re.findall(r"segmentation fault at address 0x8, thread \d+, \d+ frames:\n.*libvma", done.out)), told,
                             done.out)


if __name__ == "__main__":
    case.main()
