"""Each setting changed and its effect observed: a table of settings and what tells of them, from the peer (the kernel's
TCP_INFO of the other end, its counters), from /proc or from the statistics. The same program runs with the default before.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, library, preload_env

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

    def start(self, what, *args, until="ready", prefix=(), **variables):
        program = self.python(self.b, "settings.py", what, *args, preload=True, start=True, stdin=subprocess.PIPE, prefix=prefix,
                              env={"VMA_STATS_SHMEM_DIR": self.folder, **variables})
        program.expect(rf"(?m)^{until}$", 20)
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

    def test_of_a_new_socket(self):
        """The program sees them and may decide otherwise."""
        for settings, seen in (({}, "nodelay=0 undone=0 loop=1"), ({"VMA_TCP_NODELAY": "1"}, "nodelay=1 undone=0 loop=1"),
                               ({"VMA_TX_MC_LOOPBACK": "0"}, "nodelay=0 undone=0 loop=0")):
            program = self.python(self.b, "settings.py", "options", preload=True, start=True, stdin=subprocess.PIPE, env=settings)
            program.expect(rf"(?m)^{seen}$", 20)
            self.end(program)

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

    def listener(self, **variables):
        """The path of a listener that is offloaded as early as may be."""
        program = self.start("listen", self.b.ip, PORT, **{"VMA_LISTEN_EAGER": "1", **variables})
        (listener,) = (s for s in self.process(program)["sockets"] if s["local"] == f"{self.b.ip}:{PORT}")
        self.end(program)
        return listener["path"]

    def test_listener(self):
        for value, path in (("0", "undecided"), ("1", "offloaded")):
            self.assertEqual(self.listener(VMA_LISTEN_EAGER=value), path)

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

    def test_drain(self):
        """Reading what is queued looks at the ring each time, or not at all: the first read takes it in."""
        count = 200
        for value, least, most in (("0", 0, count // 2), ("1", count, None)):
            program = self.start("queued", self.b.ip, PORT, count, until="bound", VMA_RX_CQ_DRAIN_RATE_NSEC=value)
            with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                for _ in range(count):
                    peer.sendto(b"queued", (self.b.ip, PORT))
            looks = self.looks(program)
            program.tell("read")
            program.expect(r"(?m)^ready$", 20)
            looks = self.looks(program) - looks
            self.assertGreaterEqual(looks, least)
            if most:
                self.assertLess(looks, most)
            self.end(program)

    def looks(self, program):
        """At the rings of the program."""
        return sum(ring["polls"] + ring["empty_polls"] for ring in self.process(program)["rings"])

    def test_no_room(self):
        """Datagrams that wait for their rate fill the send buffer of a socket that does not wait."""
        rate, count, size = 10_000_000, 600, 1000
        self.introduce(self.a, self.b)
        for value in ("", "1", "0"):
            with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                peer.bind((self.a.ip, PORT))
                peer.settimeout(5)
                program = self.python(self.b, "udp_paced.py", "poll", self.a.ip, PORT, rate, count, size, start=True, preload=True,
                                      stdin=subprocess.PIPE, env={"VMA_TX_NONBLOCKED_EAGAINS": value} if value else None)
                program.expect(r"(?m)^\{.*\}$", 20)
                self.end(program)
                told = json.loads(next(line for line in program.out.splitlines() if line.startswith("{")))
                got = 0
                while got < count and select.select([peer], [], [], 0.5)[0]:
                    peer.recv(2000)
                    got += 1
                if value == "0":
                    self.assertEqual(told["full"], 0)
                    self.assertTrue(0 < got < count, got)
                else:
                    self.assertGreater(told["full"], 0)
                    self.assertEqual(got, count)

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

    def test_application(self):
        """A block of the rules file that is for this program, and for another one."""
        rules = os.path.join(self.folder, "rules")
        with open(rules, "w") as f:
            f.write(f"application-id * ours\nuse os tcp_server *:{PORT}\n")
        for name, path in (("ours", "kernel"), ("other", "offloaded")):
            self.assertEqual(self.listener(VMA_CONFIG_FILE=rules, VMA_APPLICATION_ID=name), path)

    def test_firewall(self):
        self.assert_ok(self.b.run(["nft", "add table ip t; add chain ip t c { type filter hook input priority 0; }; "
                                          f"add rule ip t c tcp dport {PORT} drop"]))
        try:
            for value, path in (("0", "kernel"), ("1", "offloaded")):
                self.assertEqual(self.listener(VMA_IGNORE_FIREWALL=value), path)
        finally:
            self.assert_ok(self.b.run(["nft", "delete table ip t"]))

    def unread(self, datagrams, **variables):
        """(socket, ring, largest mapping of a BPF map) of a program that reads nothing of what it is sent."""
        self.introduce(self.a, self.b)
        program = self.start("unread", self.b.ip, PORT, **variables)
        with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            for _ in range(datagrams):
                peer.sendto(bytes(500), (self.b.ip, PORT))

        def look():
            process = self.process(program)
            (ours,) = (s["counters"] for s in process["sockets"] if s["local"] == f"{self.b.ip}:{PORT}")
            (ring,) = process["rings"]
            arrived = ring["rx_frames"] + sum(ring["drops"].values())
            return (ours, ring) if arrived >= datagrams or not ring["drops"] and ring["pool_refused"] else None

        seen = eventually(look)
        self.assertIsNotNone(seen, "the ring has not seen them")
        with open(f"/proc/{program.pid}/maps") as f:
            mapped = max(int(end, 16) - int(begin, 16) for begin, end in re.findall(r"(?m)^(\w+)-(\w+) .*bpf-map$", f.read()))
        self.end(program)
        return *seen, mapped

    def test_memory(self):
        """Of a socket, of its ring's queue and of its ring's packets."""
        ours, ring, mapped = self.unread(40)
        self.assertLess(ours["rx_queue_limit"], 60000)
        self.assertGreater(ours["rx_dropped_full"], 0)
        self.assertEqual(ring["pool_refused"], 0)
        ours, _, less = self.unread(40, VMA_RX_BYTES_MIN="60000", VMA_PACKET_RING_BYTES="1048576")
        self.assertEqual((ours["rx_queue_limit"], ours["rx_dropped_full"], ours["rx_queue_packets"]), (60000, 0, 40))
        self.assertEqual(mapped - less, 2 * (7 << 20))  # the receive area stands twice, so that a frame is in one piece
        ours, ring, _ = self.unread(40, VMA_RX_BYTES_MIN="60000", VMA_RX_BUFS="10")
        self.assertEqual(ring["pool_high_water"], 10)
        self.assertEqual(ring["drops"], {"no_buffer": 30})
        ours, ring, _ = self.unread(40, VMA_RX_BYTES_MIN="60000", VMA_RX_BUFS="10", VMA_CQ_KEEP_QP_FULL="0")
        self.assertEqual((ring["pool_high_water"], ring["rx_frames"], ring["drops"]), (10, 10, {}))

    def test_looks_at_the_kernel(self):
        for ratio, least, most in (("1", 1, 1), ("300", 2, 300), ("0", 0, 0)):
            program = self.start("looks", self.b.ip, PORT, 1000, VMA_RX_UDP_POLL_OS_RATIO=ratio)
            looks = int(program.expect(r"(?m)^looks (\d+)$").group(1))
            self.assertTrue(least <= looks <= most, f"VMA_RX_UDP_POLL_OS_RATIO={ratio}: {looks}")
            self.end(program)

    def waits(self, call, enough, **variables):
        """Counters of waits by `call` for datagrams of the peer, one after the other until they are `enough`."""
        program = self.start("answers", self.b.ip, PORT, call, **variables)
        with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.settimeout(20)
            peer.connect((self.b.ip, PORT))
            for _ in range(20):
                for _ in range(20):
                    peer.send(b"text")
                    peer.recv(10)
                process = self.process(program)
                if call == "poll":
                    seen = next(w for w in process["waits"] if w["name"] == "poll")
                else:
                    seen = next(s["counters"] for s in process["sockets"] if s["local"] == f"{self.b.ip}:{PORT}")
                if enough(seen):
                    break
            peer.send(b"end")
        program.expect(r"(?s)ready.*ready")
        self.end(program)
        return seen

    def test_polling(self):
        """Waits that polling ended, that slept, and the time that polling took."""
        for call, variable, none in (("recv", "VMA_RX_POLL", "1"), ("poll", "VMA_SELECT_POLL", "0")):
            seen = self.waits(call, lambda w: w["poll_hit"] > 0, **{variable: "-1"})
            self.assertEqual((seen["poll_hit"] > 0, seen["poll_miss"]), (True, 0), variable)
            seen = self.waits(call, lambda w: w["poll_miss"] > 0, **{variable: none})
            self.assertGreater(seen["poll_miss"], 0, variable)
        seen = self.waits("poll", lambda w: w["polling_ns"] > 0, VMA_SPIN_MAX_USEC="1000000")
        self.assertGreater(seen["polling_ns"], 0)
        seen = self.waits("poll", lambda w: w["poll_miss"] > 0, VMA_SPIN_MAX_USEC="0")
        self.assertEqual((seen["poll_miss"] > 0, seen["polling_ns"]), (True, 0))

    def test_kernel_descriptors_beside_ours(self):
        """In an answer that something of ours is ready for, and while polling. The pipe is always ready."""
        for settings, told in (({}, 20), ({"VMA_SELECT_SKIP_OS": "4"}, 5), ({"VMA_SELECT_SKIP_OS": "0"}, 20),
                               ({"VMA_SELECT_SKIP_OS": "4", "VMA_SELECT_POLL_OS_FORCE": "1"}, 20)):
            program = self.start("both", self.b.ip, PORT, 20, **settings)
            self.send_one()
            program.expect(rf"(?m)^told {told}$")
            self.end(program)
        for ratio, told in (("1", "input"), ("0", "socket")):
            program = self.start("first", self.b.ip, PORT, VMA_SELECT_POLL="-1", VMA_SELECT_SKIP_OS="1000000",
                                 VMA_SELECT_POLL_OS_RATIO=ratio)

            def looks():
                return sum(ring["empty_polls"] for ring in self.process(program)["rings"])

            before = looks()
            self.assertTrue(eventually(lambda: looks() > before + 1000))  # it is in the call, and beyond its first look
            program.tell("text")
            if ratio == "0":
                self.send_one()
            program.expect(rf"(?m)^told {told}$")
            self.end(program)

    def send_one(self):
        self.introduce(self.a, self.b)
        with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.sendto(b"text", (self.b.ip, PORT))

    def test_unserved(self):
        for value, said, path, told in (("-1", "taken", "offloaded", None), ("0", "taken", "kernel", None), ("1", "taken", "kernel", "ERROR"),
                                        ("2", "refused 22", "offloaded", "ERROR"), (None, "taken", "kernel", "INFO")):
            for kind in ("tcp", "udp"):
                with self.subTest(value=value, kind=kind):
                    program = self.start("unserved", (self.b if kind == "udp" else self.a).ip, PORT, kind,
                                         **({"VMA_EXCEPTION_HANDLING": value} if value else {}))
                    program.expect(rf"(?m)^{said}$")
                    (ours,) = [s for s in self.process(program)["sockets"] if s["protocol"] == kind]
                    self.assertEqual(ours["path"], path)
                    levels = re.findall(r"VMA (\w+): fd \d+: socket option level 1 name 5 is the kernel's", program.out)
                    self.assertEqual(levels, [told] if told else [], program.out)
                    self.end(program)
        done = self.python(self.b, "settings.py", "unserved", self.b.ip, PORT, "udp", preload=True, env={"VMA_EXCEPTION_HANDLING": "3"})
        self.assertEqual(done.rc, -signal.SIGABRT, done.out)

    def test_start_that_fails(self):
        """A user who may have no second thread: the program goes on without us, or ends, as it is told."""
        os.chmod(self.folder, 0o755)
        script, lib = (shutil.copy(path, self.folder) for path in (os.path.join(case.SUPPORT, "settings.py"), library()))
        for value, end in (("-1", 0), ("-2", 255)):
            done = self.b.run(["/usr/bin/python3", "-B", script, "unread", self.b.ip, PORT], env={
                **preload_env(lib), "VMA_EXCEPTION_HANDLING": value, "VMA_STATS_SHMEM_DIR": ""}, prefix=[
                    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--nproc=1"])
            self.assertEqual(done.rc, end, done.out)

    def test_options_without_system_calls(self):
        for value, calls in (("0", 50), ("1", 0)):
            log = os.path.join(self.folder, "calls")
            program = self.start("options_of_a_connection", self.a.ip, PORT, 10, VMA_AVOID_SYS_CALLS_ON_TCP_FD=value,
                                 prefix=["strace", "-D", "-f", "-qq", "-e", "trace=setsockopt,write", "-o", log])
            self.assertEqual(program.expect(r"(?m)^now (.*)$").group(1), "1 10 10 10 10")
            self.end(program)
            with open(log) as f:
                before = f.read().partition('"set\\n"')[0]
            self.assertEqual(len(re.findall(r"SO_KEEPALIVE|TCP_KEEPIDLE|TCP_KEEPINTVL|TCP_KEEPCNT|TCP_USER_TIMEOUT", before)), calls, before)

    def test_look_of_a_send(self):
        """Looks at the ring: with each send, or when something arrives. Nagle keeps the acknowledgements few."""
        for value, many in (("0", False), ("1", True)):
            program = self.start("sends", self.a.ip, PORT, 5000, VMA_RX_POLL_ON_TX_TCP=value)
            (ring,) = self.process(program)["rings"]
            self.assertEqual(ring["polls"] + ring["empty_polls"] >= 5000, many, ring)
            self.end(program)

    def test_connection_requests(self):
        self.introduce(self.a, self.b)
        for rate, limited in (("0", False), ("2", True)):
            program = self.start("listen", self.b.ip, PORT, VMA_LISTEN_EAGER="1", VMA_TCP_MAX_SYN_RATE=rate)
            with contextlib.ExitStack() as clients:
                for _ in range(8):
                    client = clients.enter_context(self.a.socket(socket.AF_INET, socket.SOCK_STREAM))
                    client.setblocking(False)
                    client.connect_ex((self.b.ip, PORT))

                def counted():
                    (ring,) = self.process(program)["rings"]
                    return ring["rx_frames"] >= 8 and ring["drops"].get("tcp_syn_rate", 0)

                self.assertTrue(eventually(lambda: counted() is not False))
                self.assertEqual(counted() > 0, limited, self.process(program)["rings"])
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
