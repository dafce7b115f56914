"""The extra API through its table: extra_api.c takes each function from the place that VMA published and looks at what it
returns; here its effects are looked at from outside, by the peer and the statistics. Every layout of the table, asked for as
this library's header does and as VMA's does.
"""

import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, library, preload_env, softhca_env

LAYOUTS = (606, 902, 908)
PORT = 7100  # of the peer, UDP and TCP


class Program(case.NetCase):
    """A program in namespace b; the peer, kernel sockets in a, is this test."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="vma_extra."))
        self.udp = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.tcp = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        for s in (self.udp, self.tcp):
            self.addCleanup(s.close)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((self.a.ip, PORT))
            s.settimeout(10)
        self.tcp.listen(8)
        self.introduce(self.b, self.a)  # so that the first header is complete

    def stats(self, program):
        """The process in vma_stats."""
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "--json", "-p", str(program.pid)], timeout=20)
        self.assert_ok(done)
        (process,) = json.loads(done.out)["processes"]
        return process

    variables = {}  # more of them

    def environment(self):
        return preload_env(VMA_STATS_SHMEM_DIR=self.folder, **self.variables)

    def start(self, part, layout=908, plain=False, preload=True):
        """plain: asks as a program that was compiled against VMA's header."""
        env = self.environment() if preload else {}
        if plain and preload:
            env["VMA_EXTRA_API_LAYOUT"] = str(layout)
        line = [binary(f"{self.program}_{layout}"), part, self.a.ip, str(PORT), *(["plain"] if plain else [])]
        return self.b.start(line, env=env, stdin=subprocess.PIPE)

    def end(self, program):
        program.stdin.close()
        self.assertEqual(program.wait(20), 0, program.out)

    def run_part(self, part, **how):
        """Runs to its end; the output."""
        program = self.start(part, **how)
        program.expect(r"(?m)^good$", 20)
        self.end(program)
        return program.out

    def sockets(self, program):
        """The sockets of the program's statistics by their local port."""
        return {s["local"].rpartition(":")[2]: s for s in self.stats(program)["sockets"]}


class Table(Program):
    program = "extra_api"

    def test_absent_without_the_library(self):
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                self.run_part("absent", layout=layout, preload=False)

    def test_every_slot_answers(self):
        for layout in LAYOUTS:
            for plain in (False, True):
                with self.subTest(layout=layout, plain=plain):
                    self.run_part("table", layout=layout, plain=plain)

    def test_rules(self):
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                program = self.start("rules", layout)
                program.expect(r"(?m)^good$", 20)
                seen = self.sockets(program)
                self.assertEqual((seen["7101"]["reason"], seen["7102"]["reason"]), ("rule", "none"))
                self.end(program)

    def test_threads_choose(self):
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                program = self.start("thread", layout)
                program.expect(r"(?m)^good$", 20)
                seen = self.sockets(program)
                self.assertEqual((seen["7111"]["path"], seen["7111"]["reason"]), ("kernel", "offload_off"))
                self.assertEqual((seen["7112"]["path"], seen["7113"]["path"]), ("offloaded", "offloaded"))
                self.end(program)

    def test_rings(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.run_part("rings", layout=layout)

    def test_network_header(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.run_part("header", layout=layout)

    def test_options(self):
        self.run_part("options")

    def test_profiles(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.run_part("profiles", layout=layout)

    def test_shutdown_rx(self):
        program = self.start("shutdown_rx")
        program.expect(r"(?m)^ready$", 20)
        at = (self.b.ip, 7123)
        self.udp.sendto(b"by rings", at)
        program.expect(r"(?m)^next$", 20)
        self.udp.sendto(b"queued", at)
        self.assertTrue(eventually(lambda: self.sockets(program)["7123"]["counters"]["rx_queue_packets"] == 1, 10))
        program.tell("go on")
        self.assertEqual(self.udp.recv(100), b"shut")
        self.udp.sendto(b"by kernel", at)
        self.assertEqual(self.accept_all(), b"stream")
        program.expect(r"(?m)^good$", 20)
        seen = self.sockets(program)["7123"]
        self.assertEqual((seen["counters"]["rx_packets"], seen["counters"]["rx_os_packets"]), (2, 1))
        self.assertEqual((seen["counters"]["tx_packets"], seen["reason"]), (1, "unsupported_option"))
        self.end(program)

    def test_dump(self):
        out = self.run_part("dump")
        self.assertEqual(out.count("local 0.0.0.0:7131 peer none"), 2, out)

    def accept_all(self):
        """What the program sends by its one connection, which ends when it has sent all."""
        connection = self.tcp.accept()[0]
        with connection:
            connection.settimeout(10)
            stream = b""
            while piece := connection.recv(1000):
                stream += piece
        return stream

    def test_exit(self):
        program = self.start("exit")
        self.assertEqual(self.accept_all(), b"by the ring, by the kernel")
        self.assertEqual(self.udp.recv(100), b"end")
        program.expect(r"(?m)^good$", 20)
        self.end(program)

    def test_dummy_send(self):
        """Nothing of it reaches the peer, and the statistics count it."""
        program = self.start("dummy")
        self.assertEqual(self.accept_all(), b"first last")
        program.expect(r"(?m)^good$", 20)
        datagrams = []
        while not datagrams or datagrams[-1] != b"last":
            datagrams.append(self.udp.recv(1000))
        self.assertEqual(datagrams, [b"last"])
        counted = [s["counters"]["tx_dummy"] for s in self.sockets(program).values() if "counters" in s]
        self.assertEqual(sorted(counted)[-2:], [5, 5], counted)
        self.end(program)


class Receive(Program):
    """Datagrams and streams without a copy, and what is kept of them."""

    program = "extra_receive"
    AT = 7161

    def send(self, numbers, size=500):
        for number in numbers:
            text = b"datagram %d" % number
            self.udp.sendto(text + bytes([number % 256]) * (size - len(text)), (self.b.ip, self.AT))

    def each_layout(self, part, do, layouts=LAYOUTS):
        for layout in layouts:
            with self.subTest(layout=layout):
                program = self.start(part, layout)
                if part != "tcp":
                    program.expect(r"(?m)^ready$", 20)
                do(program)
                program.expect(r"(?m)^good$", 20)
                self.end(program)

    def test_datagrams(self):
        def do(program):
            with self.past_the_kernel(self.b, 1000):
                self.send(range(20))
                program.expect(r"(?m)^more$", 20)
                self.send(range(20, 22))
                program.expect(r"(?m)^good$", 20)
            counters = self.sockets(program)[str(self.AT)]["counters"]
            self.assertEqual((counters["rx_zcopy"], counters["rx_kept"], counters["rx_packets"]), (21, 1, 22))
            rings = self.stats(program)["rings"]
            self.assertEqual([(r["kept"], r["kept_reclaimed"]) for r in rings], [(1, 0)])

        self.each_layout("udp", do)

    def test_by_the_kernel(self):
        self.each_layout("kernel", lambda program: None)

    def test_kept_datagrams_fill_the_buffer(self):
        def do(program):
            dropped = 0
            self.send(range(20))
            for said, numbers in (("keeps", range(20, 800)), ("empty", range(800))):
                program.expect(rf"(?m)^{said}$", 20)
                self.send(numbers)
                self.assertTrue(eventually(lambda: self.seen(program) == dropped + len(numbers), 10))
                now = self.sockets(program)[str(self.AT)]["counters"]["rx_dropped_full"]
                self.assertGreater(now, dropped)
                dropped = now
                program.tell("go on")

        self.each_layout("full", do)

    def seen(self, program):
        """Datagrams that wait or were dropped."""
        counters = self.sockets(program)[str(self.AT)]["counters"]
        return counters["rx_queue_packets"] + counters["rx_dropped_full"]

    def test_fork_and_hand_back(self):
        self.each_layout("forked", lambda program: self.send(range(20)))

    def test_close_reclaims(self):
        self.each_layout("closes", lambda program: self.closes(program))

    def closes(self, program):
        self.send(range(20))
        program.expect(r"(?m)^good$", 20)
        (ring,) = self.stats(program)["rings"]
        self.assertEqual((ring["kept"], ring["kept_reclaimed"]), (0, 20))

    def test_stream(self):
        def do(program):
            connection = self.tcp.accept()[0]
            with connection:
                connection.settimeout(20)
                try:
                    connection.sendall(bytes(i % 251 for i in range(3_000_000)))
                except OSError as e:
                    self.fail(f"{e}\n{program.out}")
                connection.shutdown(socket.SHUT_WR)
                self.assertEqual(program.expect(r"(?m)^got (\d+)$", 20)[1], "3000000")
                program.expect(r"(?m)^good$", 20)
                zcopy = [s["counters"]["rx_zcopy"] for s in self.sockets(program).values() if "counters" in s]
                self.assertGreater(max(zcopy), 0)
                self.assertEqual([r["kept"] for r in self.stats(program)["rings"]], [0])

        self.each_layout("tcp", do, LAYOUTS[1:])


class Callback(Program):
    """A receive callback drops, lets through and holds."""

    program = "extra_callback"
    AT = 7171

    def send(self, count):
        for number in range(count):
            self.udp.sendto(b"datagram %d" % number, (self.b.ip, self.AT))

    def test_datagrams(self):
        for way in ("blocking", "poll", "select", "epoll", "looking"):
            for layout in LAYOUTS if way == "poll" else (908,):
                with self.subTest(way=way, layout=layout):
                    program = self.start(way, layout)
                    program.expect(r"(?m)^ready$", 20)
                    self.send(30)
                    self.assertEqual([self.udp.recv(100) for _ in range(10)], [b"datagram %d" % n for n in range(0, 30, 3)])
                    program.expect(r"(?m)^good$", 20)
                    counters = self.sockets(program)[str(self.AT)]["counters"]
                    self.assertEqual({name: counters[name] for name in ("rx_callback", "rx_zcopy", "rx_kept", "rx_packets")},
                                     {"rx_callback": 30, "rx_zcopy": 10, "rx_kept": 0, "rx_packets": 10})
                    self.end(program)

    def test_removed(self):
        program = self.start("removed")
        program.expect(r"(?m)^ready$", 20)
        self.send(5)
        program.expect(r"(?m)^removed$", 20)
        self.send(5)
        program.expect(r"(?m)^good$", 20)
        self.end(program)

    def test_closing(self):
        program = self.start("closing")
        program.expect(r"(?m)^ready$", 20)
        self.send(5)
        program.expect(r"(?m)^good$", 20)
        self.end(program)

    def test_reading_inside(self):
        for who in ("reading", "forking"):
            with self.subTest(who=who):
                program = self.start(who)
                with self.tcp.accept()[0] as connection:
                    program.expect(r"(?m)^ready$", 20)
                    connection.sendall(bytes(i % 251 for i in range(5000)))
                    connection.shutdown(socket.SHUT_WR)
                    program.expect(r"(?m)^read 4990$", 20)
                    program.expect(r"(?m)^good$", 20)
                self.end(program)

    def test_stream(self):
        program = self.start("stream")
        connection = self.tcp.accept()[0]
        with connection:
            connection.settimeout(20)
            program.expect(r"(?m)^ready$", 20)
            text = bytes(i % 251 for i in range(3_000_000))
            # One by one, so that each way is taken: what comes while something is readable joins it.
            for number, what in enumerate(("shown 0", "read 1000", "shown 2")):
                connection.sendall(text[1000 * number:1000 * (number + 1)])
                program.expect(rf"(?m)^{what}$", 20)
            connection.sendall(text[3000:])
            connection.shutdown(socket.SHUT_WR)
            got = program.expect(r"(?m)^got (\d+) dropped (\d+) kept (\d+) read (\d+)$", 20)
            total, *ways = map(int, got.groups())
            self.assertEqual(total, 3_000_000)
            self.assertGreater(min(ways), 0, got[0])
            program.expect(r"(?m)^good$", 20)
        self.end(program)


class Xtreme:
    """SocketXtreme: everything by polling a ring, whichever kind it is."""

    program = "extra_xtreme"
    AT = 7181
    ring_kind = "packet"
    variables = {"VMA_SOCKETXTREME": "1"}

    def test_errors(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.run_part("errors", layout=layout)

    def send(self, numbers):
        for number in numbers:
            self.udp.sendto(b"datagram %d" % number, (self.b.ip, self.AT))

    def test_datagrams(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout), self.past_the_kernel(self.b, 21):
                program = self.start("udp", layout)
                program.expect(r"(?m)^ready$", 20)
                self.send(range(20))
                program.expect(r"(?m)^more$", 20)
                self.send([20])
                program.expect(r"(?m)^kept$", 20)
                counters = self.sockets(program)[str(self.AT)]["counters"]
                self.assertEqual([counters[name] for name in ("rx_zcopy", "rx_kept", "rx_packets")], [21, 20, 21])
                self.assertEqual([(r["kind"], r["kept"]) for r in self.stats(program)["rings"]], [(self.ring_kind, 20)])
                program.tell("go on")
                program.expect(r"(?m)^good$", 20)
                self.assertEqual([(r["kept"], r["kept_reclaimed"]) for r in self.stats(program)["rings"]], [(0, 0)])
                self.end(program)

    def test_stream(self):
        program = self.start("tcp")
        with self.tcp.accept()[0] as connection:
            connection.settimeout(20)
            text = bytes(i % 251 for i in range(1_000_000))
            connection.sendall(text[:10_000])
            program.expect(r"(?m)^kept$", 20)
            kept = [s["counters"]["rx_kept"] for s in self.sockets(program).values() if "counters" in s]
            self.assertGreater(max(kept), 0)
            program.tell("go on")
            connection.sendall(text[10_000:])
            connection.shutdown(socket.SHUT_WR)
            self.assertEqual(program.expect(r"(?m)^got (\d+)$", 20)[1], "1000000")
            program.expect(r"(?m)^good$", 20)
            self.assertEqual([r["kept"] for r in self.stats(program)["rings"]], [0])
        self.end(program)

    def test_server(self):
        program = self.start("server")
        program.expect(r"(?m)^ready$", 20)
        clients = [self.a.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(3)]
        for client in clients:
            self.addCleanup(client.close)
            client.settimeout(20)
            client.connect((self.b.ip, self.AT))
        for number in range(20):
            text = b"message %d" % number
            for client in clients:
                client.sendall(text)
            for client in clients:
                self.assertEqual(client.recv(len(text), socket.MSG_WAITALL), text)
        for client in clients:
            client.shutdown(socket.SHUT_WR)
            self.assertEqual(client.recv(1), b"")
        program.expect(r"(?m)^good$", 20)
        self.end(program)


class XtremePacket(Xtreme, Program):
    """And what has nothing to do with a kind of ring."""

    def test_off(self):
        self.variables = {}
        out = self.run_part("off")
        self.assertEqual(out.count("VMA_SOCKETXTREME=1 turns them on"), 1, out)

    def test_by_the_kernel(self):
        self.run_part("kernel")


class XtremeVerbs(case.OnVerbs, Xtreme, Program):
    """The same by the verbs ring."""


class TableVerbs(case.OnVerbs, Table):
    """By a ring that has a device."""


class ReceiveVerbs(case.OnVerbs, Receive):
    """The same by the verbs ring."""


class CallbackVerbs(case.OnVerbs, Callback):
    """The same by the verbs ring."""


class SharedMemory(Program):
    """A connection between two processes of one host. Datagrams have no such ring, and rules, threads and profiles nothing to
    do with one."""

    program = "extra_shm"

    def both(self, part, look, layout, **variables):
        """The program, its peer, and a look at its statistics."""
        self.variables = {"VMA_SHM_AFTER": "8"} | variables
        name = "extra_xtreme" if variables else self.program

        def start(what):
            return self.b.start([binary(f"{name}_{layout}"), what, "127.0.0.1", "7182"], env=self.environment(),
                                stdin=subprocess.PIPE)

        echo = start("echo")
        echo.expect(r"(?m)^ready$", 20)
        program = start(part)
        program.expect(r"(?m)^(good|kept)$", 20)
        if look:
            look(self.stats(program))
        if "kept" in program.out:
            program.tell("go on")
        program.expect(r"(?m)^good$", 20)
        self.end(program)
        self.end(echo)

    def ring(self, process):
        (ring,) = [ring for ring in process["rings"] if ring["kind"] == "shm"]
        return ring

    def counters(self, process):
        (socket_,) = [s["counters"] for s in process["sockets"] if s["remote"] == "127.0.0.1:7182"]
        return socket_

    def each_layout(self, part, look=None, **variables):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.both(part, look, layout, **variables)

    def test_received_without_a_copy(self):
        def look(seen):
            self.assertEqual(self.counters(seen)["rx_zcopy"], 200)
            self.assertEqual((self.counters(seen)["rx_kept"], self.ring(seen)["kept"]), (8, 8))

        self.each_layout("zcopy", look)

    def test_callback(self):
        def look(seen):
            counters = self.counters(seen)
            self.assertEqual((counters["rx_callback"], counters["rx_zcopy"], counters["rx_kept"]), (200, 66, 0))

        self.each_layout("callback", look)

    def test_dummy_send(self):
        self.each_layout("dummy", lambda seen: self.assertEqual(self.counters(seen)["tx_dummy"], 5))

    def test_rings(self):
        self.each_layout("rings")

    def test_shutdown_rx(self):
        self.each_layout("shutdown_rx")

    def test_exit(self):
        self.each_layout("exit")

    def test_socketxtreme(self):
        self.each_layout("shm", lambda seen: self.assertGreater(self.ring(seen)["rx_frames"], 100), VMA_SOCKETXTREME="1")


class Device(Program):
    """What a program asks of a ring's device: the packet ring has none."""

    program = "extra_device"

    def test_no_device(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.run_part("no_device", layout=layout)

    def test_no_user_memory(self):
        self.run_part("no_user_memory")

    def test_no_external_memory(self):
        self.assertEqual(self.run_part("no_external_memory").count("needs the queues of a device"), 1)

    def test_no_external_memory_here(self):
        """There are devices, but not of this interface."""
        self.variables = softhca_env(os.path.join(self.folder, "wire"), "name=elsewhere ifindex=999999")
        self.assertIn("needs the queues of a device: this interface has none", self.run_part("none_after_all"))


class DeviceVerbs(case.OnVerbs, Program):
    """The software HCA."""

    program = "extra_device"

    def test_device(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                self.run_part("device", layout=layout)

    def test_external_memory(self):
        for layout in LAYOUTS[1:]:
            with self.subTest(layout=layout):
                program = self.start("external_memory", layout)
                text, at = self.udp.recvfrom(100)
                self.assertEqual(text, b"by its ring")
                self.udp.sendto(b"answer", at)
                with self.tcp.accept()[0] as connection:
                    connection.settimeout(10)
                    self.assertEqual(connection.recv(100, socket.MSG_WAITALL), b"and a stream")
                program.expect(r"(?m)^good$", 20)
                self.end(program)

    def test_user_memory(self):
        program = self.start("user_memory")
        program.expect(r"(?m)^ready$", 20)
        self.udp.sendto(b"received".ljust(500), (self.b.ip, 7124))
        self.assertEqual(self.udp.recv(2000), b"sent by it".ljust(1000, b"."))
        program.expect(r"(?m)^good$", 20)
        self.end(program)


class CyclicReads:
    """Datagrams in a cyclic buffer, whichever kind the ring is."""

    program = "extra_cyclic"
    AT = 7191

    def send(self, number, size=500):
        text = b"datagram %d" % number
        self.udp.sendto(text + bytes([number % 256]) * (size - len(text)), (self.b.ip, self.AT))

    def reads(self, part):
        with self.subTest(part=part):
            program = self.start(part, 902)
            program.expect(r"(?m)^ready$", 20)
            for number in range(20):
                self.send(number)
            program.expect(r"(?m)^good$", 20)
            self.end(program)

    def test_modes(self):
        with self.past_the_kernel(self.b, 80):
            for part in ("raw", "strip", "separate", "padded"):
                self.reads(part)


class Cyclic(CyclicReads, Program):
    """And what has nothing to do with a kind of ring."""

    def test_by_the_kernel(self):
        self.reads("kernel")

    def test_own_memory(self):
        self.reads("own_memory")

    train_frames = 1

    def test_trains(self):
        """Datagrams that come as one frame have headers of their own."""
        program = self.start("raw", 902)
        program.expect(r"(?m)^ready$", 20)
        train = b"".join((b"datagram %d" % n).ljust(500, bytes([n])) for n in range(20))
        self.udp.setsockopt(socket.IPPROTO_UDP, 103, 500)  # UDP_SEGMENT
        self.udp.sendto(train, (self.b.ip, self.AT))
        program.expect(r"(?m)^good$", 20)
        self.assertEqual([r["rx_frames"] for r in self.stats(program)["rings"]], [self.train_frames])
        self.end(program)

    def test_least_and_too_long(self):
        program = self.start("least", 902)
        program.expect(r"(?m)^ready$", 20)
        for number in range(3):
            self.send(number)
            program.expect(rf"(?m)^has {number + 1}$", 20)
        self.send(3, 713)  # of 712
        self.send(4)
        program.expect(r"(?m)^has 4$", 20)
        self.udp.sendto(b"usual", (self.b.ip, self.AT))
        program.expect(r"(?m)^good$", 20)
        self.assertEqual(self.sockets(program)[str(self.AT)]["counters"]["rx_errors"], 1)
        self.end(program)

    def test_errors(self):
        self.assertEqual(self.run_part("errors", layout=902).count("needs datagrams"), 1)


class CyclicVerbs(case.OnVerbs, Cyclic):
    """The same by the verbs ring."""

    train_frames = 20  # its wire takes them apart


class Examples(Program):
    """The programs of examples/."""

    def explain(self, *rules, preload=True):
        env = preload_env(VMA_TRACELEVEL="warning") if preload else {}
        if rules:
            with open(os.path.join(self.folder, "rules"), "w") as file:
                file.write("\n".join(rules) + "\n")
            env["VMA_CONFIG_FILE"] = file.name
        done = self.b.run([binary("example_explain"), self.a.ip, str(PORT)], env=env, timeout=20)
        self.assert_ok(done)
        return dict(line.split(": ", 1) for line in done.out.splitlines())

    def test_explain(self):
        (interface,) = [line.split(":")[0] for line in self.b.run(["ip", "-o", "link", "show", self.b.dev]).out.splitlines()]
        ring = f"offloaded, packet ring of interface {interface}"
        said = self.explain()
        self.assertRegex(said["a new socket"], r"^undecided, \d+ undecided \(")
        self.assertEqual((said["datagrams"], said["a connection"]), (ring, f"{ring}, ESTABLISHED"))
        self.assertRegex(said["IPv6"], r"^kernel, \d+ ipv6 \(.*\); use AF_INET$")
        self.assertEqual(said["standard input"], "Socket operation on non-socket")

    def test_explain_a_rule(self):
        said = self.explain(f"use os tcp_client {self.a.ip}:*")
        self.assertRegex(said["a connection"], r"^kernel, \d+ rule \(a rule of libvma.conf")
        self.assertTrue(said["datagrams"].startswith("offloaded, "), said)

    def test_explain_without_the_library(self):
        self.assertEqual(self.explain(preload=False)["a connection"], "the library is not loaded")


class LoadAndGo:
    """examples/load.c: loaded at run time and unloaded, ten times over. Nothing stays, and what is open goes on."""

    ROUNDS = 10

    def load(self, *how, address=None, echo=None):
        env = {"VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "warning"} | self.variables
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            echoed = pool.submit(echo) if echo else None
            done = self.b.run([binary("example_load"), library(), address or self.a.ip, str(PORT), *how], env=env, timeout=60)
            self.assert_ok(done)
            if echoed:
                echoed.result(20)
        rounds = [line for line in done.out.splitlines() if line.startswith("round")]
        self.assertEqual(rounds, [f"round {n}: offloaded 1, mapped 1, bytes good 1; after that bytes good 1, mapped 0, "
                                  "descriptors +0, threads +0" for n in range(1, self.ROUNDS + 1)])
        self.assertEqual(os.listdir(self.folder), [])

    def streams(self):
        """Sends back what comes by the connections, one after the other."""
        for _ in range(self.ROUNDS):
            with self.tcp.accept()[0] as connection:
                connection.settimeout(20)
                while piece := connection.recv(100_000):
                    connection.sendall(piece)

    def datagrams(self):
        for _ in range(self.ROUNDS * 40):
            text, at = self.udp.recvfrom(2000)
            self.udp.sendto(text, at)

    def test_stream(self):
        self.load(echo=self.streams)

    def test_datagrams(self):
        with self.past_the_kernel(self.b, 5_600):  # 200 of 400: less than 300
            self.load("udp", echo=self.datagrams)

    def test_a_set_lives_on(self):
        self.load("epoll", echo=self.streams)

    def test_a_thread_is_still_there(self):
        self.load("thread", echo=self.streams)

    def test_after_vma_exit(self):
        self.load("exit", echo=self.streams)


class Load(LoadAndGo, Program):
    def test_by_shared_memory(self):
        """Two processes of one host: the other has the library all the time."""
        self.variables = {"VMA_SHM_AFTER": "8"}
        with tempfile.TemporaryDirectory(prefix="vma_echo.") as folder:
            env = preload_env(VMA_STATS_SHMEM_DIR=folder, VMA_SHM_AFTER="8")
            self.python(self.b, "echo_threads.py", "127.0.0.1", PORT, start=True, env=env).expect("ready")
            self.load("shm", address="127.0.0.1")


class LoadVerbs(case.OnVerbs, LoadAndGo, Program):
    """By a card, whose library stays."""

    def setUp(self):
        super().setUp()
        self.variables = self.by_verbs(self.b)


if __name__ == "__main__":
    case.main()
