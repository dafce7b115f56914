"""Chaos: servers, their brokers, the broker of the host, the interface and what programs may use are taken away at random, under
traffic of peers that are the kernel's and compare every byte. What is right is strict: bytes are those that were sent, in order, up to
wherever a connection ends; only a connection whose server was killed may end early; and at the end nothing is left.

VMA_TEST_CHAOS_MINUTES is the length (./dev soak MINUTES; a minute with its end otherwise), VMA_TEST_SEED chooses the same things again,
in the same order.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from duplex import pattern
from host_broker import HostBroker
from netns import binary, eventually, library, preload_env
from tcx import left

PORT = 7960
PATIENCE = 40.0  # seconds that a peer waits for a byte: a stopped program, a link that is down and the retransmissions after it
# What a server may be short of: its environment, and options of prlimit.
SHORT = (({}, ()), ({}, ()), ({"VMA_RX_BUFS": 300}, ()), ({}, ("--memlock=65536",)), ({}, ("--nofile=60",)), ({}, ("--fsize=4096",)),
         ({"VMA_BROKER": 0}, ()), ({"VMA_TCP_MAX_MEMORY": "4M"}, ()))
MOST_DESCRIPTORS = 36  # of a server without a connection: 31 for one with privileges


class Server:
    """One echo server, in this or its next life."""

    def __init__(self, chaos, number, rootless):
        self.chaos, self.port, self.rootless = chaos, PORT + number, rootless
        self.times = 0  # started and killed: odd while there is none, or one that is about to die
        self.start()

    def start(self):
        chance = self.chaos.chance
        env, limits = chance.choice(SHORT)
        prefix = self.chaos.host.user() if self.rootless else []
        line = ["/usr/bin/python3", "-B", self.chaos.script, "plain", self.chaos.b.ip, self.port]
        self.what = f"port {self.port}, life {self.times // 2}, {'nobody' if self.rootless else 'root'} {env} {limits}"
        env = preload_env(self.chaos.library, VMA_TRACELEVEL="error", VMA_STATS_SHMEM_DIR=self.chaos.folder, **env)
        self.process = self.chaos.b.start(["prlimit", *limits, *line], env=env, prefix=prefix)
        self.process.expect("ready", 30)

    def kill(self):
        self.times += 1
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10, output=False)
        self.start()
        self.times += 1


class Chaos(case.NetCase):
    seconds = 60 * float(os.environ.get("VMA_TEST_CHAOS_MINUTES", "0.75"))

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-chaos-")
        os.chmod(self.folder, 0o1777)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        programs = os.path.join(self.folder, "programs")  # which every user may read
        os.mkdir(programs, 0o755)
        for source, name in ((library(), "libvma.so"), (binary("vmad"), "vmad"), (os.path.join(case.SUPPORT, "soak_server.py"), "soak_server.py"),
                             (os.path.join(case.SUPPORT, "duplex.py"), "duplex.py")):
            shutil.copy(source, os.path.join(programs, name))
        self.library, self.script = os.path.join(programs, "libvma.so"), os.path.join(programs, "soak_server.py")

    # ---- the peers

    def talk(self, number, seed):
        chance = random.Random(seed)
        while not self.enough.is_set() and not self.wrong:
            server = chance.choice(self.servers)
            before = server.times
            try:
                self.converse(server, chance)
            except AssertionError as error:
                self.wrong.append(f"peer {number}, {server.what}: {error}")
            except OSError as error:
                if server.times == before and before % 2 == 0:
                    self.wrong.append(f"peer {number}, {server.what}: {error!r} although it lives")
            self.talks[number] += 1

    def connected(self, server):
        """A connection, and server.times before it was made; None when the test is over."""
        end = time.monotonic() + PATIENCE
        while not self.enough.is_set():
            s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
            s.settimeout(PATIENCE)
            times = server.times
            try:
                s.connect((self.b.ip, server.port))
                return s, times
            except ConnectionRefusedError:
                s.close()  # between two lives
                self.assertLess(time.monotonic(), end, "nobody listens")
                self.enough.wait(0.05)
            except OSError:
                s.close()
                raise
        return None, 0

    def converse(self, server, chance):
        s, times = self.connected(server)
        if s is None:
            return
        with s:
            s.sendall(b"e")  # soak_server.py: only echo
            for _ in range(chance.randrange(1, 30)):
                data = pattern(chance.randrange(1000), chance.choice((1, 100, 1460, 5000, 40000)))
                try:
                    s.sendall(data)
                    back = bytearray()
                    while len(back) < len(data):
                        piece = s.recv(len(data) - len(back))
                        if not piece:
                            raise ConnectionResetError("the end")
                        back += piece
                        self.assertEqual(data[len(back) - len(piece):len(back)], piece, "other bytes than were sent")
                except OSError as error:
                    self.assertTrue(times % 2 or server.times != times, f"{error!r} although it lives")
                    return
                self.answered += 1

    # ---- what happens to them

    def server_is_killed(self):
        self.chance.choice(self.servers).kill()

    def server_is_stopped(self):
        process = self.chance.choice(self.servers).process
        process.send_signal(signal.SIGSTOP)
        self.enough.wait(self.chance.choice((0.2, 1.5)))
        process.send_signal(signal.SIGCONT)

    def brokers_are_killed(self):
        for pid in self.b.pids():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if f.read().startswith(b"vmad\0--broker\0"):
                    os.kill(pid, signal.SIGKILL)

    def host_broker_is_killed(self):
        self.host.again(self.keeper.pid, "--group", "games")

    def link_goes_down(self):
        self.b.run(["ip", "link", "set", self.b.dev, "down"])
        self.enough.wait(self.chance.choice((0.05, 0.5)))
        self.b.run(["ip", "link", "set", self.b.dev, "up"])

    def mtu_changes(self):
        mtu = self.chance.choice((1500, 1400, 9000, 576))
        for space in (self.a, self.b):
            space.run(["ip", "link", "set", space.dev, "mtu", mtu])

    def firewall_comes_and_goes(self):
        self.b.run(["nft", "add table ip chaos; add chain ip chaos c { type filter hook input priority 0; }; add rule ip chaos c tcp dport 1 drop"])
        self.enough.wait(0.2)
        self.b.run(["nft", "delete", "table", "ip", "chaos"])

    def address_comes_and_goes(self):
        self.b.run(["ip", "addr", "add", "198.51.100.7/32", "dev", self.b.dev])
        self.b.run(["ip", "addr", "del", "198.51.100.7/32", "dev", self.b.dev])

    def many_at_once(self):
        """Programs that live for a moment, each with a ring."""
        script = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('%s', 0))" % self.b.ip
        env = preload_env(self.library, VMA_TRACELEVEL="error", VMA_STATS_SHMEM_DIR=self.folder)
        crowd = [self.b.start(["/usr/bin/python3", "-c", script], env=env) for _ in range(8)]
        for process in crowd:
            if self.chance.randrange(2):
                process.send_signal(signal.SIGKILL)
            process.wait(30, output=False)

    def test_every_byte(self):
        seed = int(os.environ.get("VMA_TEST_SEED", random.randrange(1 << 31)))
        print(f"seed {seed}, {self.seconds:g} seconds", flush=True)
        self.chance = random.Random(seed)
        self.host = HostBroker(self.b, "--group", "games")
        self.keeper = self.b.start([*self.host.enter(), "sleep", "100000"])  # of the mount namespace
        self.assertTrue(eventually(lambda: os.path.realpath(f"/proc/{self.keeper.pid}/exe").endswith("/sleep"), 10))
        self.servers = [Server(self, number, rootless=number % 2 == 1) for number in range(4)]
        self.enough, self.wrong, self.talks, self.answered = threading.Event(), [], [0] * 6, 0
        peers = [threading.Thread(target=self.talk, args=(i, seed + i + 1)) for i in range(len(self.talks))]
        for peer in peers:
            peer.start()
        happenings = [self.server_is_killed, self.server_is_stopped, self.brokers_are_killed, self.host_broker_is_killed,
                      self.link_goes_down, self.mtu_changes, self.firewall_comes_and_goes, self.address_comes_and_goes, self.many_at_once]
        counts = dict.fromkeys((h.__name__ for h in happenings), 0)
        end = time.monotonic() + self.seconds
        try:
            while time.monotonic() < end and not self.wrong:
                happening = self.chance.choice(happenings)
                happening()
                counts[happening.__name__] += 1
                self.enough.wait(self.chance.choice((0.0, 0.1, 0.5)))
        finally:
            self.enough.set()
            for peer in peers:
                peer.join(PATIENCE + 10)
        print(f"  {self.answered} answers compared on {sum(self.talks)} connections; {counts}", flush=True)
        self.assertEqual(self.wrong, [])
        for server in self.servers:
            self.assertTrue(server.process.running(), server.process.out)
        self.nothing_is_left()

    @staticmethod
    def descriptors(pid):
        folder, found = f"/proc/{pid}/fd", []
        for fd in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(os.path.join(folder, fd)))
        return found

    def held(self):
        """What the broker of the host has of its clients."""
        return [name for name in self.descriptors(self.host.process.pid) if "memfd:" in name or "pidfd" in name]

    def nothing_is_left(self):
        self.assertNotEqual(left(self.b), [])  # so the question can be answered
        # Their peers have gone: of a conversation no descriptor stays, the program's or the library's.
        for server in self.servers:
            self.assertTrue(eventually(lambda server=server: len(self.descriptors(server.process.pid)) <= MOST_DESCRIPTORS, 70),
                            f"{server.what}: {self.descriptors(server.process.pid)}")
        for server in self.servers:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(10, output=False)
        # A server's end is a rescue of its connections, after which nothing of it is held.
        self.assertTrue(eventually(lambda: not self.held(), 40), self.held())
        self.host.kill(signal.SIGTERM)
        self.keeper.kill()
        self.assertTrue(eventually(lambda: not self.b.pids(), 70), self.b.run(["ps", "ax"]).out)
        self.assertTrue(eventually(lambda: left(self.b) == [], 10), left(self.b))
        # Pages of dead processes: the next who looks removes them, one that was only begun after ten seconds.
        def pages():
            subprocess.run([binary("vma_stats"), "-k", self.folder], capture_output=True, check=False, timeout=20)
            return [name for name in os.listdir(self.folder) if name != "programs"]

        self.assertTrue(eventually(lambda: not pages(), 20), pages())


if __name__ == "__main__":
    case.main()
