"""Polling groups (mellanox/xlio.h): poll_group.c uses each function and checks what it is told; its peers here are kernel
sockets. Over the packet ring, the verbs ring, and where the kernel serves a socket of a group.
"""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually
from test_extra_api import PORT, Program

PATTERN = 251
AT = 7191  # where the program listens


def text(length, at=0):
    begin = at % PATTERN
    return (bytes(range(PATTERN)) * (length // PATTERN + 2))[begin:begin + length]


class Groups:
    program = "poll_group"
    ring_kind = "packet"

    def accept(self):
        connection = self.tcp.accept()[0]
        self.addCleanup(connection.close)
        connection.settimeout(20)
        return connection

    @contextlib.contextmanager
    def echoing(self, connections):
        """Connections of the peer send back what they get, to their end. What they got, when that has come."""
        got = []

        def echo(connection):
            stream = bytearray()
            while piece := connection.recv(65536):
                connection.sendall(piece)
                stream += piece
            got.append(stream)

        threads = [threading.Thread(target=lambda: echo(self.accept())) for _ in range(connections)]
        for thread in threads:
            thread.start()
        yield got
        for thread in threads:
            thread.join(20)
        self.assertEqual(len(got), connections)

    def good(self, program):
        program.expect(r"(?m)^good$", 30)
        self.end(program)

    def test_errors(self):
        self.good(self.start("errors"))

    def test_stream(self):
        with self.echoing(1) as got:
            program = self.start("stream")
            program.expect(r"(?m)^held$", 30)
            process = self.stats(program)
            counters = self.connection(program)["counters"]
            self.assertEqual([r["kind"] for r in process["rings"]], [self.ring_kind])
            self.assertGreater(counters["rx_zcopy"], 0)
            self.assertEqual(counters["rx_bytes"], 2_000_000)
            self.assertEqual(counters["rx_os_bytes"] + counters["tx_os_bytes"], 0)
            program.tell("go on")
            self.good(program)
        self.assertEqual(got[0], text(2_000_000))

    def test_threads(self):
        with self.echoing(3) as got:
            self.good(self.start("threads"))
        self.assertEqual(sorted(got, key=len), [text(300_000), text(300_001), text(300_002)])

    def test_sends_beside_polls(self):
        with self.echoing(1) as got:
            self.good(self.start("safe"))
        self.assertEqual(got[0], b"".join(text(100, 100 * i) for i in range(3000)))

    def test_server(self):
        program = self.start("server")
        program.expect(r"(?m)^ready$", 20)
        stream = text(500_000)
        clients = [self.a.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(3)]
        for client in clients:
            self.addCleanup(client.close)
            client.settimeout(20)
            client.connect((self.b.ip, AT))

        def send(client):
            client.sendall(stream)
            client.shutdown(socket.SHUT_WR)

        senders = [threading.Thread(target=send, args=(client,)) for client in clients]
        for sender in senders:
            sender.start()
        for client in clients:
            echo = bytearray()
            while piece := client.recv(65536):
                echo += piece
            self.assertEqual(echo, stream)
        for sender in senders:
            sender.join(20)
        self.good(program)
        self.assertEqual(program.out.count("echoed 500000"), 3, program.out)

    def test_refused(self):
        self.good(self.start("refused"))

    def test_peer_ends(self):
        program = self.start("closed")
        connection = self.accept()
        connection.sendall(text(100))
        connection.shutdown(socket.SHUT_WR)
        self.assertEqual(connection.recv(200, socket.MSG_WAITALL), text(100))
        self.good(program)

    def test_reset(self):
        for part in ("reset", "reset_by_flush"):
            with self.subTest(part=part):
                program = self.start(part)
                connection = self.accept()
                program.expect(r"(?m)^sent$", 20)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                program.tell("go on")
                self.good(program)

    def test_destroyed_with_data_in_flight(self):
        program = self.start("destroyed")
        connection = self.accept()
        stream = bytearray()
        while piece := connection.recv(65536):
            stream += piece
        self.assertEqual(stream, text(10 * 4000 * PATTERN))
        connection.close()
        self.good(program)

    def test_group_destroyed_with_data_in_flight(self):
        program = self.start("group_destroyed")
        connection = self.accept()
        program.expect(r"(?m)^good$", 20)
        stream = bytearray()
        with self.assertRaises(ConnectionResetError):
            while piece := connection.recv(65536):
                stream += piece
        self.assertEqual(stream, text(len(stream)))
        self.end(program)

    def test_moved_between_groups(self):
        with self.echoing(1):
            self.good(self.start("moved"))

    def connection(self, program):
        (found,) = [s for s in self.stats(program)["sockets"] if s.get("remote", "").endswith(f":{PORT}")]
        return found

    def test_handed_back(self):
        """A firewall rule that may match comes while the stream runs: the kernel goes on with it."""
        with self.echoing(1) as got:
            program = self.start("handed_back")
            program.expect(r"(?m)^by ring$", 20)
            self.addCleanup(self.b.run, ["nft", "delete", "table", "ip", "watch"])
            for line in ("add table ip watch", "add chain ip watch in { type filter hook input priority 0 ; }",
                         f"add rule ip watch in tcp sport {PORT} limit rate over 1000000/second drop"):
                self.assert_ok(self.b.run(["nft", line]))
            self.assertTrue(eventually(lambda: self.connection(program)["path"] == "kernel", 20), program.out)
            before, segments = self.connection(program)["counters"], self.b.counters("Tcp")["InSegs"]
            program.tell("go on")
            program.expect(r"(?m)^by kernel$", 20)
            self.assertGreater(self.b.counters("Tcp")["InSegs"], segments)
            # What has come by the ring is complete, and what comes now is the kernel's.
            after = self.connection(program)["counters"]
            self.assertGreaterEqual(before["rx_bytes"], 100_000)
            self.assertEqual(after["rx_bytes"], before["rx_bytes"])
            program.tell("end")
            self.good(program)
        self.assertEqual(got[0], text(len(got[0])))

    def test_memory(self):
        with self.echoing(1):
            program = self.start("memory")
            self.good(program)
        self.assertIn("allocated 0", program.out)


class Packet(Groups, Program):
    """And what has nothing to do with a kind of ring."""

    def test_by_the_kernel(self):
        """Both ends in one host: each is a socket of the kernel, and the program sees no difference."""
        env = self.environment()
        for part in ("stream", "memory"):
            with self.subTest(part=part):
                server = self.b.start([binary("poll_group_908"), "server", "127.0.0.1", "0"], env=env, stdin=subprocess.PIPE)
                server.expect(r"(?m)^ready$", 20)
                clients = [self.b.start([binary("poll_group_908"), part, "127.0.0.1", str(AT)], env=env, stdin=subprocess.PIPE)
                           for _ in range(3)]
                for client in clients:
                    if part == "stream":
                        client.expect(r"(?m)^held$", 30)
                        client.tell("go on")
                    self.good(client)
                    if part == "memory":
                        self.assertIn("allocated 1", client.out)
                self.good(server)

    def test_linked(self):
        """Without a preload: the program names the library, or has libvma.a in itself."""
        for layout, named in ((908, True), ("static", False)):
            with self.subTest(layout=layout), self.echoing(1):
                elf = subprocess.run(["readelf", "-d", binary(f"poll_group_{layout}")], capture_output=True, text=True, check=True)
                self.assertEqual("libvma.so" in elf.stdout, named)
                program = self.start("stream", layout, preload=False)
                program.expect(r"(?m)^held$", 30)
                self.assertIn("VMA_VERSION", program.out)  # the banner
                program.tell("go on")
                self.good(program)


class Verbs(case.OnVerbs, Groups, Program):
    """The same by the verbs ring."""


class Examples(case.NetCase):
    """examples/poll_group_*.c, both linked with the library, one in each namespace."""

    def test_echo(self):
        self.introduce(self.b, self.a)
        server = self.b.start([binary("example_poll_group_server"), str(AT), "2"])
        server.expect(r"(?m)^listening$", 20)
        for _ in range(2):
            done = self.a.run([binary("example_poll_group_client"), self.b.ip, str(AT), "3"], timeout=30)
            self.assert_ok(done)
            self.assertIn(f"{3 << 20} bytes came back, 0 of them wrong", done.out)
        server.expect(r"(?m)^served 2 connections$", 20)
        self.assertEqual(server.wait(20), 0, server.out)

    def test_nobody_listens(self):
        done = self.a.run([binary("example_poll_group_client"), self.b.ip, str(AT), "1"], timeout=30)
        self.assertEqual(done.rc, 1, done.out)
        self.assertIn("the connection: Connection refused", done.out)


if __name__ == "__main__":
    case.main()
