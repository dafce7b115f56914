"""Live connections and listeners across exec, spawn, system() and popen()."""

import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import binary, eventually

PORT = 7450
BYTES = 1_000_000


class Exec(case.PeerCase):
    script, port = "exec_ways.py", PORT

    def subject(self, way, *args, address=None):
        return super().subject(way, *(address or (self.a.ip, PORT)), *args)

    def test_in_place(self):
        subject = self.subject("in_place")
        with self.accept(subject) as s:
            duplex.exchange(s, 1, BYTES)
        self.finish(subject)

    def test_exec_that_fails(self):
        subject = self.subject("fails")
        for seed in (2, 3):
            with self.accept(subject) as s:
                duplex.exchange(s, seed, BYTES)
        self.finish(subject)

    def unsent(self, way):
        """The peer reads nothing until the old program is gone; then everything is there, and the end."""
        size = 600_000
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        subject = self.subject(way, size)
        with self.accept(subject) as s:
            self.finish(subject)
            got = bytearray()
            while piece := s.recv(65536):
                got += piece
            self.assertEqual(bytes(got), b"u" * size)

    def test_unsent_data_of_a_descriptor_that_closes(self):
        self.unsent("closes")

    def test_unsent_data_of_a_closed_socket(self):
        self.unsent("forgotten")

    def test_passed_by_number(self):
        subject = self.subject("passed_on")
        with self.accept(subject) as s:
            duplex.exchange(s, 4, BYTES)
        self.finish(subject)

    def test_system_and_popen_with_the_socket(self):
        subject = self.subject("by_system")
        with self.accept(subject) as s:
            data = duplex.pattern(5, 100_000) + b"y" * 100_000
            s.sendall(data)
            got = bytearray()
            while piece := s.recv(65536):
                got += piece
            self.assertEqual(bytes(got), data[:100_000] + b"y" * 50_000 + b"z" * 50_000)
        self.finish(subject)

    def test_hot_restart(self):
        generations = 3
        port = PORT + 1
        server = self.subject("hot_restart", generations, address=(self.b.ip, port))
        server.expect("ready")
        live = self.a.call(lambda: duplex.dial(self.b.ip, port))
        with live:
            for left in range(generations - 1, -1, -1):
                duplex.exchange(live, 6, 100_000, half_close=False)
                server.expect(f"generation {left}")
                with self.a.call(lambda: duplex.dial(self.b.ip, port)) as fresh:
                    duplex.exchange(fresh, left, BYTES)
            duplex.exchange(live, 7, BYTES)
        self.finish(server)

    def test_connections_that_wait(self):
        server = self.python(self.b, "exec_ways.py", "waiting", self.b.ip, PORT + 2, start=True, preload=self.preload,
                             stdin=subprocess.PIPE)
        server.expect("ready")
        clients = [self.a.call(lambda: duplex.dial(self.b.ip, PORT + 2)) for _ in range(2)]
        server.tell("go")
        clients.append(self.a.call(lambda: duplex.dial(self.b.ip, PORT + 2)))
        # All at a time: the server takes one after the other, and the last one may be in the kernel's queue before the first.
        with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(lambda of: duplex.exchange(clients[of], of, BYTES), range(len(clients))))
        for s in clients:
            s.close()
        self.finish(server)


class ExecKernel(Exec):
    """The same without the library: the test itself is right."""
    preload = False


class Crowd(case.NetCase):
    def test_commands_beside_connections(self):
        count = 100
        server = self.python(self.b, "exec_ways.py", "crowd", self.b.ip, PORT, count, start=True, preload=True,
                             stdin=subprocess.PIPE)
        server.expect("ready")
        members = [self.a.call(lambda: duplex.dial(self.b.ip, PORT)) for _ in range(count)]
        for i, s in enumerate(members):
            self.addCleanup(s.close)
            s.settimeout(duplex.LIMIT)
            s.sendall(b"hello %d" % i)
        for i, s in enumerate(members):
            self.assertEqual(s.recv(100), b"hello %d" % i)
        pid = int(server.expect(r"commands done (\d+)", 60).group(1))

        def offloaded():
            done = self.b.run([binary("vma_stats"), "--json", "-p", str(pid)], timeout=10)
            self.assertEqual(done.rc, 0, done.out)
            rows = json.loads(done.out)["processes"][0]["sockets"]
            return [r for r in rows if r["protocol"].startswith("tcp") and r["tcp_state"] == "ESTABLISHED" and r["path"] == "offloaded"]

        self.assertTrue(eventually(lambda: len(offloaded()) == count, 5), f"{len(offloaded())} of {count} are offloaded")
        server.stdin.write(b"\n")
        server.stdin.flush()
        for i, s in enumerate(members):
            s.sendall(b"again %d" % i)
            self.assertEqual(s.recv(100), b"again %d" % i)
            self.assertEqual(s.recv(1), b"")
        server.expect("good")
        self.assertEqual(server.wait(10), 0, server.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
