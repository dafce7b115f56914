"""This library's own functions (vma_get_own_api): extra_own.c calls them, here is the peer, on the kernel. And the programs of
examples/ that show them.
"""

import concurrent.futures
import fcntl
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import budgets
import case
import test_extra_api as extra
from netns import binary, eventually, preload_env

PORT = extra.PORT
SO_RCVBUFFORCE, IP_RECVTTL, SIOCOUTQNSD = 33, 12, 0x894B


class Own(extra.Program):
    def start(self, part, address=None, port=PORT, **env):
        return self.b.start([binary("extra_own"), part, address or self.a.ip, str(port)], env=self.environment() | env,
                            stdin=subprocess.PIPE)

    def accept_all(self):
        """What the program sends by its one connection, which ends when it has sent all."""
        stream = b""
        with self.tcp.accept()[0] as connection:
            connection.settimeout(10)
            while piece := connection.recv(10000):
                stream += piece
        return stream

    def change(self, program, after, how=None):
        """The program has done the step, and goes on to the next once `how` has happened."""
        program.expect(rf"(?m)^{after}$", 20)
        if how:
            how()
        program.tell("go on")

    def counters(self, program, protocol):
        """Of the program's connected socket."""
        (found,) = [s["counters"] for s in self.stats(program)["sockets"]
                    if s["protocol"] == protocol and s["remote"] and "counters" in s]
        return found


class Templates(Own):
    def test_errors(self):
        self.run_part("errors")

    def receive(self, *wanted, by=None):
        got = [(by or self.udp).recv(2000) for _ in wanted]
        self.assertEqual(got, [bytes(w, "ascii") for w in wanted])

    def test_datagrams(self):
        other = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(other.close)
        other.bind((self.a.ip, PORT + 1))
        other.settimeout(10)
        program = self.start("datagrams")
        program.expect(r"(?m)^many$", 20)
        for i in range(100):
            self.receive(f"{i:08} {'second' if i % 2 else 'first template'}")
        seen = self.counters(program, "udp")
        self.assertEqual((seen["tx_packets"], seen["tx_os_packets"]), (100, 0), "not by the ring")
        program.tell("go on")
        self.receive("00000001 third messagee", f"00000002{'L' * 992}")
        self.change(program, "patched", self.move_peer)
        self.receive("00000003 third messagee")
        self.change(program, "another neighbour", self.shrink_path)
        self.receive("00000004 third messagee", f"00000005{'L' * 992}")
        self.udp.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        self.change(program, "smaller packets")
        text, ((_, _, ttl),), _, _ = self.udp.recvmsg(100, 100)
        self.assertEqual((text, ttl[0]), (b"00000006 third messagee", 33))
        by_kernel = self.counters(program, "udp")["tx_os_packets"]
        self.assertEqual(by_kernel, 0)
        self.change(program, "another option")
        self.receive("00000007 t", "hird messa", "gee")
        self.receive("00000008 third messagee00000009 second")
        self.change(program, "cut and put together")
        self.receive("00000010 second")
        self.change(program, "one more")
        self.receive("00000011 second", by=other)
        self.change(program, "another peer")
        self.receive("00000012 second", "00000013 second", by=other)
        self.change(program, "parent and child")
        program.expect(r"(?m)^good$", 20)
        self.end(program)

    def move_peer(self):
        """Another card answers at the peer's address."""
        mac = "02:00:00:00:24:01"
        self.assert_ok(self.a.run(["ip", "link", "set", "dev", self.a.dev, "address", mac]))
        self.introduce(self.b, self.a)

    def shrink_path(self):
        self.assert_ok(self.b.run(["ip", "route", "add", f"{self.a.ip}/32", "dev", self.b.dev, "src", self.b.ip, "mtu", "600"]))
        self.addCleanup(self.b.run, ["ip", "route", "del", f"{self.a.ip}/32", "dev", self.b.dev])

    def test_threads(self):
        """Of two threads at one template one is refused: no datagram is of both."""
        self.udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        program = self.start("threads")
        count = {b"a" * 400: 0, b"b" * 400: 0}
        while (datagram := self.udp.recv(1000)) != b"end":
            count[datagram] += 1
        self.assertEqual(list(count.values()), [2000, 2000])
        program.expect(r"(?m)^good$", 20)
        self.end(program)

    def test_stream(self):
        """Records that come whole and in order: by rings, when the buffer is full, after a hand-back."""
        program = self.start("stream")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            received = pool.submit(self.accept_all)
            program.expect(r"(?m)^by rings$", 20)
            seen = self.counters(program, "tcp")
            self.assertEqual((seen["tx_packets"], seen["tx_bytes"], seen["tx_os_packets"]), (500, 50_000, 0))
            program.tell("go on")
            self.change(program, "full")
            records = int(program.expect(r"records (\d+)\n", 20).group(1))
            (kernel,) = [s for s in self.stats(program)["sockets"] if s["protocol"] == "tcp"]
            self.assertEqual(kernel["path"], "kernel")
            self.change(program, "by the kernel")
            program.expect(r"(?m)^good$", 20)
            self.assertEqual(received.result(20), b"".join(b"%08d" % i + b"." * 92 for i in range(records)))
        self.end(program)

    def test_shared_memory(self):
        echo = self.start("echo", "127.0.0.1", 7182, VMA_SHM_AFTER="8")
        echo.expect(r"(?m)^ready$", 20)
        program = self.start("shm", "127.0.0.1", 7182, VMA_SHM_AFTER="8")
        program.expect(r"(?m)^good$", 20)
        rings = {ring["kind"]: ring for ring in self.stats(program)["rings"]}
        self.assertGreater(rings["shm"]["tx_frames"], 900)
        self.end(program)
        echo.expect(r"(?m)^good$", 20)
        self.end(echo)


class Messages(Own):
    """SO_VMA_MESSAGES: the kernel, the peer, counts the segments that bring text."""
    DATA_SEGS_IN = 152  # tcpi_data_segs_in of struct tcp_info, linux/tcp.h

    def expect_segments(self, program, peer, size, wanted):
        """So many bytes come in so many segments, but for those that the program has sent again."""
        while size > 0:
            size -= len(peer.recv(min(size, 1000)))
        self.segments += wanted
        arrived = int.from_bytes(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)[self.DATA_SEGS_IN:][:4], "little")
        self.assertIn(arrived - self.segments, range(self.counters(program, "tcp")["tx_retransmits"] + 1))

    def test_messages(self):
        self.segments = 0
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # most of the text waits at the sender
        program = self.start("messages")
        with self.tcp.accept()[0] as peer:
            peer.settimeout(10)
            self.expect_segments(program, peer, sum(20 + i % 80 for i in range(3000)), 3000)
            self.assertEqual(self.counters(program, "tcp")["tx_os_packets"], 0, "not by the ring")
            self.change(program, "many")
            self.expect_segments(program, peer, 300, 5)
            self.change(program, "corked")
            self.expect_segments(program, peer, 150, 1)
            self.change(program, "stream again")
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            program.expect(r"(?m)^receives$", 20)
            sizes = [10, 1, 33, 60, 40, 5]
            for size in sizes:
                peer.send(b"x" * size)
            self.assertEqual(self.counters(program, "tcp")["rx_os_packets"], 0)
            program.tell("go on")
            peer.shutdown(socket.SHUT_WR)
            program.expect(r"(?m)^good$", 20)
        self.end(program)
        read = [int(line) for line in program.out.splitlines() if line.isdigit()]
        self.assertEqual(read, [10, 1, 33, 40, 20, 40, 5], "of one packet each, 40 bytes at most")


class MessagesVerbs(case.OnVerbs, Messages):
    pass


class Ordered(Own):
    CHUNK, CHUNKS = 100, 20
    environs = {}
    ways, broadcast = 4, False

    def environment(self):
        return super().environment() | self.environs

    def send(self, streams, number):
        """To one of the sockets; it has left when this returns."""
        way, text = self.random.randrange(self.ways), b"%08d" % number
        if way < 2:
            by_kernel = self.broadcast and number % 7 == 0
            self.udp.sendto(text, ("255.255.255.255" if by_kernel else self.b.ip, 7191 + way))
            return
        streams[way - 2].sendall(text)
        left = eventually(lambda: fcntl.ioctl(streams[way - 2], SIOCOUTQNSD, b"\0" * 4) == b"\0" * 4, 10)
        self.assertTrue(left, "a segment did not leave")

    def test_order(self):
        seed = random.randrange(1 << 32)
        self.random = random.Random(seed)
        print(f"seed {seed}")
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.a.dev.encode())
        # One processor for both ends: what two send (the kernel sends a segment where its acknowledgement came) could pass each other.
        self.addCleanup(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        program = self.start("ordered")
        streams = [self.tcp.accept()[0] for _ in range(2)]
        for s in streams:
            self.addCleanup(s.close)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for chunk in range(self.CHUNKS):
            program.expect(rf"(?m)^next {chunk}$", 20)
            for number in range(chunk * self.CHUNK, (chunk + 1) * self.CHUNK):
                self.send(streams, number)
            if chunk == 0:
                program.tell("all there")
        program.expect(r"(?m)^all$", 20)
        if self.environs.get("VMA_RING_ALLOCATION_LOGIC_RX"):
            self.assertGreater(len([r for r in self.stats(program)["rings"] if r["rx_frames"]]), 1)
        for s in streams:
            s.close()
        self.change(program, "all")
        program.expect(r"(?m)^edge$", 20)
        self.udp.sendto(b"edge", (self.b.ip, 7191))
        program.tell("go on")
        program.expect(r"(?m)^good$", 20)
        self.end(program)


class OrderedRings(Ordered):
    """Each socket has a ring, and gets some by the kernel: what comes by several ways is ordered by the stamps of the kernel, which
    TCP over veth has not."""

    ways, broadcast = 2, True
    environs = {"VMA_RING_ALLOCATION_LOGIC_RX": "10"}


class OrderedVerbs(case.OnVerbs, Ordered):
    """By a ring that stamps what it brings when the library takes it."""


class TemplatesVerbs(case.OnVerbs, Templates):
    """The same by the verbs ring."""

    test_errors = test_shared_memory = None  # have nothing to do with the ring

    def move_peer(self):
        pass  # the card keeps its address


class TemplateCost(Own):
    """A fire costs less than the send() that it stands for, in instructions of the whole call, which callgrind counts."""

    TIMES = 1000

    def instructions(self, protocol, how):
        with tempfile.TemporaryDirectory() as folder:
            prefix = ["valgrind", "--tool=callgrind", "--trace-children=yes", "--collect-atstart=no",
                      f"--toggle-collect={how}s", f"--callgrind-out-file={folder}/%p"]
            program = self.b.start([binary("template_cost"), protocol, how, self.a.ip, str(PORT), str(self.TIMES)], prefix=prefix,
                                   env=preload_env(VMA_TRACELEVEL="warning", VMA_BROKER="0"))
            self.assertEqual(program.wait(60), 0, program.out)
            with open(os.path.join(folder, str(program.pid)), encoding="ascii") as file:
                total = re.search(r"(?m)^totals: (\d+)", file.read())
        return int(total.group(1)) / self.TIMES

    def echo_udp(self):
        while (datagram := self.udp.recvfrom(100))[0] != b"end":
            self.udp.sendto(*datagram)

    def echo_tcp(self):
        for _ in range(2):
            with self.tcp.accept()[0] as connection:
                connection.settimeout(60)
                while piece := connection.recv(100):
                    connection.sendall(piece)

    def test_cost(self):
        self.udp.settimeout(60)
        echoes = [threading.Thread(target=self.echo_udp), threading.Thread(target=self.echo_tcp)]
        for thread in echoes:
            thread.start()
        found = {f"{protocol}_whole_{how}": self.instructions(protocol, how)
                 for protocol in ("udp", "tcp") for how in ("send", "fire")}
        with self.b.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as s:
            s.sendto(b"end", (self.a.ip, PORT))
        for thread in echoes:
            thread.join(20)
        for protocol in ("udp", "tcp"):
            self.assertLess(found[f"{protocol}_whole_fire"], found[f"{protocol}_whole_send"], found)
        budgets.check(self, found)


class Examples(Own):
    def test_ordered(self):
        program = self.b.start([binary("example_ordered"), self.a.ip, str(PORT), "400"],
                               env=self.environment() | {"VMA_TRACELEVEL": "warning"})
        program.expect(r"(?m)^ready$", 20)
        with self.tcp.accept()[0] as stream:
            for i in range(100):
                text = b"%03d\n" % i
                if i % 3 == 2:
                    stream.sendall(text)
                else:
                    self.udp.sendto(text, (self.b.ip, PORT + i % 3))
                self.assertTrue(eventually(lambda: f"{i:03}" in program.out, 10))
            self.assertEqual(program.wait(20), 0, program.out)
        self.assertEqual(program.out, "ready\n" + "".join(f"{i:03}\n" for i in range(100)))

    def test_messages(self):
        lines = [b"line %d %s\n" % (i, b"." * (i % 50)) for i in range(200)]
        program = self.b.start([binary("example_messages"), self.a.ip, str(PORT)],
                               env=self.environment() | {"VMA_TRACELEVEL": "warning"}, stdin=subprocess.PIPE)
        program.stdin.write(b"".join(lines))
        program.stdin.close()
        self.assertEqual(self.accept_all(), b"".join(lines))
        self.assertEqual((program.wait(20), program.out), (0, "200 messages\n"))

    def test_template(self):
        orders = [b"%s 100 ACME  @%08d %04d.%02d\n" % (b"SELL" if i % 2 else b"BUY ", i, i // 100, i % 100) for i in range(150)]
        for protocol in ("udp", "tcp"):
            with self.subTest(protocol):
                done = self.b.start([binary("example_template"), protocol, self.a.ip, str(PORT), "150"],
                                    env=self.environment() | {"VMA_TRACELEVEL": "warning"})
                if protocol == "udp":
                    got = [self.udp.recv(100) for _ in orders]
                else:
                    got = self.accept_all().splitlines(keepends=True)
                self.assertEqual(got, orders)
                self.assertEqual((done.wait(20), done.out), (0, "150 orders\n"))


if __name__ == "__main__":
    case.main()
