"""Why is this socket the kernel's? Each reason is produced by what it names, and `vma_stats explain` tells it, with what the user
can do. A reason of src/base/reasons.def that no test here produces fails the last one."""

import contextlib
import json
import os
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
from host_broker import HostBroker
from netns import REPO, binary, eventually, library, no_capabilities, preload_env
from test_broker import brokers

PORT = 7420
NOBODY = 65534
DESCRIPTORS = 152  # offset of Header::descriptors (src/stats/layout.h)


def advice():
    """Reason -> what the user is told to do, out of the table that the library is built from."""
    with open(os.path.join(REPO, "src/base/reasons.def"), encoding="ascii") as f:
        return dict(re.findall(r'^REASON\((\w+), ".*", "(.*)"\)$', f.read(), re.M))


class ReasonCase(case.NetCase):
    produced = set()

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-reasons-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o777)  # pages of programs of other users

    def command(self, *words):
        done = self.b.run(list(words))
        self.assertEqual(done.rc, 0, done.out)

    def copied(self, *paths):
        """Copies that every user can read."""
        for path in paths:
            shutil.copy(path, self.folder)
        return [os.path.join(self.folder, os.path.basename(path)) for path in paths]

    @contextlib.contextmanager
    def program(self, what, peer=None, env=None, prefix=(), python="/usr/bin/python3", lib=None):
        script, = self.copied(os.path.join(case.SUPPORT, "reason_of.py"))
        env = {**preload_env(lib), "VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "error", **(env or {})}
        program = self.b.start([python, "-B", script, what, self.b.ip, peer or self.a.ip, PORT], env=env, prefix=prefix,
                               stdin=subprocess.PIPE)
        try:
            yield program
            program.stdin.close()
            self.assertEqual(program.wait(10), 0, program.out)
        finally:
            program.kill()

    def told(self, pid, fd, folder=None):
        """[(path, reason, advice)] of the socket, as vma_stats has it."""
        done = self.b.run([binary("vma_stats"), "-k", folder or self.folder, "--json", "-p", pid])
        text = done.out[done.out.find("{"):]  # behind what it says of a process that does not answer
        sockets = json.loads(text)["processes"][0]["sockets"] if done.rc == 0 else []
        return [(s["path"], s["reason"], s["advice"]) for s in sockets if s["fd"] == int(fd) and "advice" in s]

    def expect_told(self, program, reason, path="kernel", folder=None):
        pid, fd = program.expect(r"ready (\d+) (\d+)").groups()
        self.assertNotEqual(advice()[reason], "")
        is_told = eventually(lambda: self.told(pid, fd, folder)[:1] == [(path, reason, advice()[reason])])
        self.assertTrue(is_told, (reason, self.told(pid, fd, folder), program.out))
        explained = self.b.run([binary("vma_stats"), "-k", folder or self.folder, "explain", "-p", pid]).out
        line = re.search(rf"(?m)^  fd {fd} .*$", explained).group(0)
        self.assertIn(f"{reason}: ", line)
        self.assertIn(advice()[reason], line)
        self.produced.add(reason)

    def expect(self, reason, what="bound", path="kernel", **options):
        with self.subTest(reason), self.program(what, **options) as program:
            self.expect_told(program, reason, path)


class Reasons(ReasonCase):
    def test_what_the_program_does(self):
        self.command("ip", "route", "add", "239.0.0.0/8", "dev", self.b.dev)
        for reason, what in (("ipv6", "ipv6"), ("family", "family"), ("protocol", "protocol"), ("loopback", "loopback"),
                             ("unsupported_option", "unsupported"), ("fd_passed", "passed"), ("stdio", "stdio"), ("fork", "fork"),
                             ("exec", "spawn"), ("seccomp", "seccomp"), ("io_uring", "io_uring"), ("reuseport_shared", "reuseport"),
                             ("broadcast", "broadcast"), ("network_namespace", "other_namespace")):
            self.expect(reason, what)
        self.expect("multicast", "multicast", path="offloaded")  # it sends by the ring
        self.expect("undecided", "undecided", path="undecided")
        self.expect("listener_idle", "listener", path="undecided")

    def test_what_the_settings_say(self):
        rules = os.path.join(self.folder, "rules")
        with open(rules, "w", encoding="ascii") as f:
            f.write(f"application-id * *\nuse os udp_receiver *:{PORT}\n")
        self.expect("rule", env={"VMA_CONFIG_FILE": rules}, path="offloaded")  # it may send by the ring
        self.expect("rule", "bound_to_any", env={"VMA_CONFIG_FILE": rules}, path="offloaded")
        self.expect("offload_off", env={"VMA_OFFLOADED_SOCKETS": "0"})
        self.expect("ring_failed", env={"VMA_RING_KIND": "shm"})

    def test_what_the_kernel_would_do_to_packets(self):
        def nft(hook, rule):
            self.command("nft", f"add table ip t; add chain ip t c {{ type {hook} priority 0; }}; add rule ip t c {rule}")

        nft("filter hook input", f"udp dport {PORT} drop")
        self.expect("netfilter")
        self.command("nft", "delete table ip t")
        nft("route hook output", f"udp sport {PORT} meta mark set 5")
        self.command("ip", "rule", "add", "fwmark", "5", "table", "100")
        self.expect("mark_routing")
        self.command("ip", "rule", "del", "fwmark", "5", "table", "100")
        self.command("nft", "delete table ip t")
        self.command("tc", "qdisc", "add", "dev", self.b.dev, "root", "tbf", "rate", "1mbit", "burst", "32k", "latency", "50ms")
        self.expect("traffic_control")
        self.command("tc", "qdisc", "del", "dev", self.b.dev, "root")
        self.command(*"ip xfrm policy add src 0.0.0.0/0 dst".split(), self.b.ip, *"dir in action block".split())
        self.expect("xfrm")
        self.command("ip", "xfrm", "policy", "flush")
        with open("/proc/mounts", encoding="utf-8") as f:
            root, = re.findall(r"(?m)^\S+ (\S+) cgroup2 ", f.read())[:1]
        name, here = f"vma-test-{os.getpid()}", os.path.join(self.folder, "cgroup")
        os.mkdir(here)
        self.addCleanup(lambda: self.assertTrue(eventually(lambda: self.removed(os.path.join(root, name)))))
        self.expect("cgroup_program", "cgroup", env={"CGROUP": f"{here}:{name}"})

    @staticmethod
    def removed(group):
        with contextlib.suppress(OSError):  # while a process is in it
            os.rmdir(group)
        return not os.path.exists(group)

    def test_what_the_device_does(self):
        wire = tempfile.mkdtemp(prefix="softhca-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, wire, ignore_errors=True)
        card = {"LD_LIBRARY_PATH": os.path.join(os.path.dirname(library()), "softhca"), "SOFTHCA_WIRE": wire,
                "SOFTHCA": f"name=hca netdev={self.b.dev}", "VMA_RING_KIND": "verbs"}
        with self.program("bound", env=card) as program:
            program.expect("ready")
            self.command("env", *(f"{name}={value}" for name, value in card.items()), binary("softhca_ctl"), program.pid, "fatal")
            self.expect_told(program, "device_lost")

    def test_where_the_way_leads(self):
        self.expect("no_route", "connect", peer="203.0.113.9")
        self.command("ip", "tuntap", "add", "dev", "vmatun", "mode", "tun")
        self.command("ip", "link", "set", "vmatun", "up")
        self.command("ip", "addr", "add", "198.51.100.1/24", "dev", "vmatun")
        self.expect("interface_unsupported", "connect", peer="198.51.100.2")
        # A connection whose way moves.
        listener = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind((self.a.ip, PORT))
        listener.listen()
        with self.program("connect") as program:
            program.expect("ready")
            peer, _ = listener.accept()
            self.addCleanup(peer.close)
            self.command("ip", "route", "add", f"{self.a.ip}/32", "dev", "vmatun")
            self.expect_told(program, "route_moved")
            self.command("ip", "route", "del", f"{self.a.ip}/32")
        self.command("ip", "link", "del", "vmatun")

    def test_limits_and_rights(self):
        self.expect("memory", "no_descriptor_for_a_ring")
        self.expect("init_failed", "no_descriptor_at_all", env={"VMA_CONF_WATCH": "1"})  # which has made the thread
        # More descriptors than there were to be had at the start: as if the table ended below this one.
        before = (f"import os, socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('{self.b.ip}', {PORT})); "
                  "os.dup2(s.fileno(), 9); os.execvp(sys.argv[1], sys.argv[1:])")
        with self.program("inherited", prefix=["/usr/bin/python3", "-c", before]) as program:
            pid, fd = program.expect(r"ready (\d+) (\d+)").groups()
            with open(os.path.join(self.folder, f"vmastat.{pid}"), "r+b") as page:
                page.seek(DESCRIPTORS)
                self.assertGreaterEqual(struct.unpack("=I", page.read(4))[0], 1024)
                page.seek(DESCRIPTORS)
                page.write(struct.pack("=I", int(fd)))
            self.expect_told(program, "fd_limit")
        self.expect("capability", prefix=no_capabilities())
        lib, = self.copied(library())
        self.expect("no_thread", lib=lib, prefix=["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                                                  "prlimit", "--nproc=1"])
        # More rights than the caller has: the settings are not the caller's to choose, the directory of the page neither.
        python, = self.copied(os.path.realpath("/usr/bin/python3"))
        os.chown(python, NOBODY, NOBODY)
        os.chmod(python, 0o4755)
        with self.program("secure", python=python, env={"LIBRARY": lib}) as program:
            self.expect_told(program, "secure_execution", folder="/tmp")

    def test_what_others_do(self):
        with self.program("accepted_by_kernel") as program:
            program.expect("listening")
            client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.addCleanup(client.close)
            client.settimeout(5)
            client.connect((self.b.ip, PORT))
            self.expect_told(program, "kernel_connection")
        shared = {"VMA_SHM_AFTER": "8"}
        with self.program("shared_memory_stays", env=shared) as stays:
            stays.expect("listening")
            with self.program("shared_memory_leaves", env=shared) as leaves:
                for turn in range(200):  # it moves when both ends have used it and the machine lets them
                    pid, fd = leaves.expect(rf"turn {turn} (\d+) (\d+) ended").groups()
                    if [path for path, *_ in self.told(pid, fd)] == ["offloaded"]:
                        break
                    leaves.tell("more")
                leaves.tell("enough")
                self.expect_told(leaves, "fd_passed")
                self.expect_told(stays, "peer_left")
        with self.program("shares_address") as first:
            first.expect("ready")
            self.expect("flow_taken", "shares_address")

    def test_a_broker_that_serves_no_more(self):
        lib, _ = self.copied(library(), binary("vmad"))
        for reason, change in (("broker_gone", self.end_broker), ("broker_policy", self.block)):
            with self.subTest(reason), self.program("made_later", lib=lib) as program:
                program.expect("dropped")
                change()
                program.tell("")
                self.expect_told(program, reason)

    def test_a_broker_whose_policy_says_no(self):
        policy = os.path.join(self.folder, "policy")
        with open(policy, "w", encoding="ascii") as f:
            f.write("any deny\n")
        host = HostBroker(self.b, "--group", "games", "--policy", policy)
        lib, = self.copied(library())
        self.expect("broker_denied", prefix=host.user(), lib=lib)
        self.assertEqual(host.kill(signal.SIGTERM), -signal.SIGTERM)

    def block(self):
        self.command("nft", f"add table ip t; add chain ip t c {{ type filter hook input priority 0; }}; add rule ip t c udp dport {PORT} drop")
        self.addCleanup(self.command, "nft", "delete table ip t")

    def end_broker(self):
        for pid in brokers(self.b):
            os.kill(pid, signal.SIGKILL)

    def test_the_end_of_the_program(self):
        """No viewer sees this one: the page goes with the process. The log has it."""
        listener = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind((self.a.ip, PORT))
        listener.listen()
        with self.program("connect", env={"VMA_TRACELEVEL": "debug"}) as program:
            fd = program.expect(r"ready \d+ (\d+)").group(1)
            peer, _ = listener.accept()
            self.addCleanup(peer.close)
        self.assertRegex(program.out, rf"fd {fd}: handed back to the kernel, \d+ frames followed: process is exiting")
        self.assertRegex(program.out, rf"\tFd=\[{fd}\]")  # and what it did
        self.produced.add("exiting")

    def test_z_no_reason_is_left_out(self):
        """The last one in the alphabet: what the others have produced."""
        self.assertEqual(set(advice()) - self.produced, {"none"})


if __name__ == "__main__":
    case.main()
