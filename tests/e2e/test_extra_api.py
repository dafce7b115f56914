"""The extra API through its table: extra_api.c takes each function from the place that VMA published and looks at what it
returns; here its effects are looked at from outside, by the peer and the statistics. Every layout of the table, asked for as
this library's header does and as VMA's does.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, preload_env

LAYOUTS = (606, 902, 908)
PORT = 7100  # of the peer, UDP and TCP


class Program(case.NetCase):
    """extra_api in namespace b; the peer, kernel sockets in a, is this test."""

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

    def start(self, part, layout=908, plain=False, preload=True):
        """plain: asks as a program that was compiled against VMA's header."""
        env = preload_env(VMA_STATS_SHMEM_DIR=self.folder) if preload else {}
        if plain and preload:
            env["VMA_EXTRA_API_LAYOUT"] = str(layout)
        line = [binary(f"extra_api_{layout}"), part, self.a.ip, str(PORT), *(["plain"] if plain else [])]
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
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "--json", "-p", str(program.pid)], timeout=20)
        self.assert_ok(done)
        (process,) = json.loads(done.out)["processes"]
        return {s["local"].rpartition(":")[2]: s for s in process["sockets"]}


class Table(Program):
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
                self.assertEqual((seen["7101"]["path"], seen["7102"]["path"]), ("kernel", "offloaded"))
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
        self.assertEqual(set(datagrams), {b"resolve", b"last"})
        counted = [s["counters"]["tx_dummy"] for s in self.sockets(program).values() if "counters" in s]
        self.assertEqual(sorted(counted)[-2:], [5, 5], counted)
        self.end(program)


if __name__ == "__main__":
    case.main()
