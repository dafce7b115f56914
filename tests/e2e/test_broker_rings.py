"""Rings of programs without privileges: opened and steered by the broker, for sockets that the program shows, and for nothing
else. Given up before the drop, asked for after it, by a child; with a broker that is killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, preload_env
from tcx import flows

PORT = 7400
RINGBUF, ARRAY = 27, 2  # linux/bpf.h, enum bpf_map_type


class RingCase(case.NetCase):
    port = PORT
    ring_kind = "auto"

    def setUp(self):
        RingCase.port += 10
        self.folder = tempfile.mkdtemp(prefix="vma-rings-")
        os.chmod(self.folder, 0o1777)
        self.addCleanup(subprocess.run, ["rm", "-rf", self.folder], check=False)

    def program(self, **env):
        program = self.python(self.b, "broker_rings.py", self.b.ip, start=True, stdin=subprocess.PIPE, preload=True,
                              env={"VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "info", "VMA_RING_KIND": self.ring_kind, **env})
        program.expect(r"\bready\b")
        return program

    def tell(self, program, *words):
        line = " ".join(map(str, words))
        program.stdin.write(line.encode() + b"\n")
        program.stdin.flush()
        answer = program.expect(rf"(?m)^(did|failed) {re.escape(line)}\b.*$")
        self.assertEqual(answer.group(1), "did", program.out)

    def pid_of(self, program, user=33):
        """The process that runs as that user."""
        for pid in self.b.pids():
            try:
                with open(f"/proc/{pid}/status", encoding="ascii") as file:
                    fields = dict(line.split(":", 1) for line in file)
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    ours = b"broker_rings.py" in file.read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if ours and int(fields["Uid"].split()[1]) == user:
                return pid
        self.fail("no process of that user\n" + program.out)

    def brokers(self):
        found = []
        for pid in self.b.pids():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if f.read().startswith(b"vmad\0--broker\0"):
                        found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def kill_broker(self):
        broker, = self.brokers()
        os.kill(broker, signal.SIGKILL)
        self.assertTrue(eventually(lambda: not self.brokers(), 5))

    def client(self, port):
        s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(s.close)
        s.settimeout(15)
        s.connect((self.b.ip, port))
        return s

    def peer_ip(self):
        return self.a.ip

    def accept_from(self, program, port):
        """The program connects to us."""
        listener = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((self.peer_ip(), port))
        listener.listen(1)
        listener.settimeout(15)
        self.tell(program, "connect", self.peer_ip(), port)
        s, _ = listener.accept()
        listener.close()
        self.addCleanup(s.close)
        s.settimeout(15)
        return s

    def ask(self, s, times=100):
        for i in range(times):
            question = b"%07d." % i
            s.sendall(question)
            back = b""
            while len(back) < len(question):
                piece = s.recv(len(question) - len(back))
                self.assertTrue(piece, "the end")
                back += piece
            self.assertEqual(back, question)

    def segments(self, s, times=100):
        """How many segments the program's kernel sees while it answers so many questions."""
        before = self.b.counters("Tcp")["InSegs"]
        self.ask(s, times)
        return self.b.counters("Tcp")["InSegs"] - before

    def expect_offloaded(self, program, s):
        self.assertLess(self.segments(s), 20, "the connection is the kernel's\n" + program.out)

    def expect_kernel(self, program, s):
        self.assertGreaterEqual(self.segments(s), 100, "the connection is not the kernel's\n" + program.out)

    def udp_client(self, port):
        s = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(s.close)
        s.settimeout(10)
        s.connect((self.b.ip, port))
        return s

    def ask_udp(self, s, times=100):
        for i in range(times):
            s.send(b"%d" % i)
            self.assertEqual(s.recv(100), b"%d" % i)

    def explain(self):
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain"], timeout=20)
        return done.out

    def maps_of(self, pid):
        """(type, key size, value size, entries) of every BPF map that the process has a descriptor of."""
        found = []
        for fd in os.listdir(f"/proc/{pid}/fdinfo"):
            with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
            if "map_type" in fields:
                found.append(tuple(int(fields[name]) for name in ("map_type", "key_size", "value_size", "max_entries")))
        return found

    def writable_maps_of(self, pid):
        """Bytes of every mapping of a BPF map that the process can write."""
        with open(f"/proc/{pid}/maps", encoding="ascii") as file:
            lines = [line.split() for line in file if "bpf-map" in line]
        sizes = []
        for line in lines:
            begin, end = (int(x, 16) for x in line[0].split("-"))
            if "w" in line[1]:
                sizes.append(end - begin)
        return sizes

    def programs_of(self, pid):
        return [fd for fd in os.listdir(f"/proc/{pid}/fd") if "bpf-prog" in os.readlink(f"/proc/{pid}/fd/{fd}")]

    def expect_no_tables(self, pid):
        """Only what its own rings need: ring buffers, their consumer pages, and the owner page of 17 pages."""
        self.assertEqual({m[0] for m in self.maps_of(pid)}, {RINGBUF})
        self.assertEqual(self.programs_of(pid), [])
        self.assertLessEqual(set(self.writable_maps_of(pid)), {4096, 17 * 4096})


class Dropped(RingCase):
    def test_listens_after_the_drop(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.tell(program, "listen-bound", self.port)
        s = self.client(self.port)
        self.ask(s)
        self.expect_offloaded(program, s)
        self.assertIn("offloaded: packet ring", self.explain())
        self.expect_no_tables(self.pid_of(program))

    def test_ring_of_before_is_given_up(self):
        program = self.program()
        self.tell(program, "listen", self.port)
        self.tell(program, "udp", self.port + 1)
        s = self.client(self.port)
        self.expect_offloaded(program, s)
        u = self.udp_client(self.port + 1)
        self.ask_udp(u, 1)
        pid = self.pid_of(program, 0)
        self.assertIn(1, {m[0] for m in self.maps_of(pid)}, "the flow table, while it may")
        self.tell(program, "drop")
        self.expect_no_tables(self.pid_of(program))
        # What was there, and what comes.
        self.expect_offloaded(program, s)
        with self.past_the_kernel(self.b, 100):
            self.ask_udp(u)
        self.expect_offloaded(program, self.client(self.port))
        self.expect_offloaded(program, self.accept_from(program, self.port + 2))
        self.tell(program, "udp", self.port + 3)
        other = self.udp_client(self.port + 3)
        with self.past_the_kernel(self.b, 100):
            self.ask_udp(other)

    def test_no_ring_before_the_drop(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.expect_offloaded(program, self.accept_from(program, self.port + 1))
        self.tell(program, "udp", self.port + 2)
        u = self.udp_client(self.port + 2)
        with self.past_the_kernel(self.b, 100):
            self.ask_udp(u)
        self.expect_no_tables(self.pid_of(program))

    def test_child_that_dropped_first(self):
        program = self.program()
        self.tell(program, "listen", self.port)
        self.ask(self.client(self.port), 1)
        self.tell(program, "fork")
        self.tell(program, "drop")
        self.expect_offloaded(program, self.accept_from(program, self.port + 1))
        self.tell(program, "udp", self.port + 2)
        u = self.udp_client(self.port + 2)
        with self.past_the_kernel(self.b, 100):
            self.ask_udp(u)
        self.tell(program, "listen", self.port + 3)
        self.expect_offloaded(program, self.client(self.port + 3))
        self.expect_no_tables(self.pid_of(program))

    def test_port_is_the_kernels_after_close(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.tell(program, "listen-bound", self.port)
        s = self.client(self.port)
        self.expect_offloaded(program, s)
        self.tell(program, "close", self.port)
        self.expect_offloaded(program, s)  # it has a flow of its own now
        kernel = self.b.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(kernel.close)
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kernel.bind((self.b.ip, self.port))
        kernel.listen(1)
        kernel.settimeout(10)
        other = self.client(self.port)
        accepted, _ = kernel.accept()
        accepted.sendall(b"kernel")
        accepted.close()
        self.assertEqual(other.recv(100), b"kernel")
        self.ask(s)

    def test_firewall_is_respected(self):
        """The program may not read the rules; the broker does."""
        self.b.run(["nft", "add table ip t; add chain ip t i { type filter hook input priority 0; }; "
                    f"add rule ip t i tcp dport {self.port + 1} counter drop"])
        self.addCleanup(self.b.run, ["nft", "delete table ip t"])
        program = self.program()
        self.tell(program, "listen", self.port)
        self.ask(self.client(self.port), 1)
        self.tell(program, "fork")
        self.tell(program, "drop")
        self.tell(program, "listen", self.port + 1)
        s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(s.close)
        s.settimeout(1)
        with self.assertRaises(TimeoutError):
            s.connect((self.b.ip, self.port + 1))
        self.tell(program, "listen", self.port + 2)
        self.expect_offloaded(program, self.client(self.port + 2))

    def test_killed_its_port_is_the_kernels(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.tell(program, "udp", self.port + 1)
        u = self.udp_client(self.port + 1)
        self.ask_udp(u, 1)
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5, output=False), -9)
        self.assertTrue(eventually(lambda: not self.brokers(), 5), "the broker stays")
        kernel = self.b.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(kernel.close)
        kernel.bind((self.b.ip, self.port + 1))
        kernel.settimeout(5)
        u.send(b"hello")
        self.assertEqual(kernel.recv(100), b"hello")


class DroppedXdp(Dropped):
    """An xdp ring is a packet ring after the drop, and before it one whose flows can be given to the broker."""

    ring_kind = "xdp"

    def test_ring_of_before_is_given_up(self):
        super().test_ring_of_before_is_given_up()
        self.assertIn("xdpgeneric", self.b.run(["ip", "link", "show", "dev", self.b.dev]).out, "it was a packet ring")


class BrokerKilled(RingCase):
    def test_connections_live_on(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.tell(program, "listen-bound", self.port)
        self.tell(program, "udp", self.port + 1)
        s, u = self.client(self.port), self.udp_client(self.port + 1)
        self.expect_offloaded(program, s)
        self.ask_udp(u, 1)
        out = self.accept_from(program, self.port + 2)
        self.expect_offloaded(program, out)
        self.kill_broker()
        for connection in (s, out):
            self.expect_offloaded(program, connection)
        with self.past_the_kernel(self.b, 100):
            self.ask_udp(u)
        # New ones go by the kernel, at once.
        self.expect_kernel(program, self.accept_from(program, self.port + 3))
        self.tell(program, "udp", self.port + 4)
        other = self.udp_client(self.port + 4)
        with self.through_the_kernel(self.b, 100):
            self.ask_udp(other)
        self.tell(program, "listen", self.port + 5)
        self.expect_kernel(program, self.client(self.port + 5))
        self.assertIn("the broker", self.explain())
        self.assertEqual(program.out.count("the broker of this process is gone"), 1, program.out)
        self.ask(s)

    def test_port_is_not_deaf(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.tell(program, "listen-bound", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.kill_broker()
        self.tell(program, "close", self.port)
        self.tell(program, "listen", self.port)
        self.expect_kernel(program, self.client(self.port))

    def test_before_the_first_ring(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "drop")
        self.kill_broker()
        self.tell(program, "listen-bound", self.port)
        self.expect_kernel(program, self.client(self.port))
        self.expect_kernel(program, self.accept_from(program, self.port + 1))


class Bereaved(RingCase):
    """A program is killed, and nobody carries its connections on: a peer that only waits is told all the same, by others."""

    def killed(self, before=lambda: None):
        program = self.program(VMA_BROKER="0")
        s = self.accept_from(program, self.port)
        self.expect_offloaded(program, s)
        before()
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5), -signal.SIGKILL)
        return s

    def test_another_program_tells_the_peer(self):
        other = self.program()
        self.tell(other, "listen", self.port + 1)
        alive = self.client(self.port + 1)
        self.expect_offloaded(other, alive)
        with self.assertRaises(ConnectionResetError):
            self.killed().recv(1)
        self.expect_offloaded(other, alive)

    def lost_first(self, segments):
        """The first of those that come to the peer is lost; the connection whose program has been killed."""
        other = self.program()
        self.tell(other, "listen", self.port + 1)
        self.expect_offloaded(other, self.client(self.port + 1))
        s = self.killed(lambda: self.a.run([
            "nft", "add table ip t; add chain ip t i { type filter hook input priority 0; }; "
            f"add rule ip t i tcp dport {self.port} tcp flags {segments} counter drop"]))
        lost = lambda: int(re.search(r"packets (\d+)", self.a.run(["nft", "list", "table", "ip", "t"]).out).group(1))
        self.assertTrue(eventually(lambda: lost() > 0, 10), "nobody told it")
        self.a.run(["nft", "delete table ip t"])
        return s

    def test_the_question_may_be_lost(self):
        with self.assertRaises(ConnectionResetError):
            self.lost_first("== syn").recv(1)

    def test_the_reset_may_be_lost(self):
        with self.assertRaises(ConnectionResetError):
            self.lost_first("& rst == rst").recv(1)

    def test_one_that_only_its_listener_covered(self):
        """It has said little: what it came by is the flow of its listener, which does not name it."""
        other = self.program()
        self.tell(other, "listen", self.port + 1)
        self.expect_offloaded(other, self.client(self.port + 1))
        program = self.program(VMA_BROKER="0")
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        before = flows(program.pid)
        s = self.client(self.port)
        self.ask(s, 1)
        self.assertTrue(eventually(lambda: flows(program.pid) > before, 10), "no flow of its own")
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5), -signal.SIGKILL)
        with self.assertRaises(ConnectionResetError):
            s.recv(1)


class Thief(RingCase):
    def test_gets_nothing_that_it_does_not_show(self):
        victim = self.program()
        self.tell(victim, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(victim, s)
        done = self.b.run([binary("ring_thief"), binary("vmad"), self.b.ip, self.port], timeout=30)
        self.assertEqual(done.rc, 0, done.out)
        self.assertIn("all refused", done.out)
        self.expect_offloaded(victim, s)
        self.expect_offloaded(victim, self.client(self.port))


if __name__ == "__main__":
    case.main()
