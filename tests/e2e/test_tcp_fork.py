"""fork with live TCP connections: the child, the parent or both go on with them; every byte arrives (issue: hand-back)."""

import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import preload_env

PORT = 7200
BYTES = 400_000


class Forked(case.NetCase):
    def exchange(self, seed):
        """Sends BYTES, half-closes, returns what came back; bounded by the socket's timeout."""
        data = bytes((i * 7 + seed) & 0xff for i in range(BYTES))
        back = bytearray()
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        client.settimeout(10)
        client.connect((self.b.ip, PORT))

        def read():
            while True:
                piece = client.recv(65536)
                if not piece:
                    return
                back.extend(piece)

        reader = threading.Thread(target=read)
        reader.start()
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        reader.join(20)
        client.close()
        self.assertEqual(len(back), len(data))
        self.assertEqual(bytes(back), data)

    def served(self, kind, connections, prefix=()):
        server = self.python(self.b, "tcp_fork_server.py", kind, self.b.ip, PORT, connections, start=True, preload=True,
                             prefix=prefix)
        server.expect("ready")
        self.b.wait_served(PORT, server)
        for i in range(connections):
            self.exchange(i)
        server.expect("done", 20)
        self.assertEqual(server.wait(10, output=False), 0)

    def test_child_serves(self):
        self.served("child", 6)

    def test_parent_begins_child_ends(self):
        self.served("both", 6)

    def test_parent_goes_on_beside_commands(self):
        self.served("system", 4)

    def test_strace_shows_the_hand_back(self):
        """The server forks with a live connection: strace sees it put into its twin, the client nothing."""
        folder = tempfile.mkdtemp(prefix="vt-strace-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        resets = self.b.counters("Tcp")["OutRsts"]
        # -D: the server is our child, not strace's.
        self.served("both", 1, ["strace", "-D", "-f", "-qq", "-e", "trace=fork,vfork,clone,clone3,setsockopt,connect,shutdown",
                                "-o", f"{folder}/calls"])
        with open(f"{folder}/calls") as f:
            calls = f.read()
        # The last of them: the broker is started and asked before.
        fork = calls.rfind("|SIGCHLD, child_tidptr", 0, calls.find("TCP_REPAIR, [1], 4"))
        self.assertGreater(fork, 0, calls)
        self.assertRegex(calls[fork:], re.compile(r"TCP_REPAIR, \[1\], 4.*connect\(.*TCP_REPAIR_WINDOW.*TCP_REPAIR, \[0\], 4", re.S))
        self.assertEqual(self.b.counters("Tcp")["OutRsts"], resets)

    def listener(self, backlog):
        s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(s.close)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.settimeout(20)
        s.bind((self.a.ip, PORT + 1))
        s.listen(backlog)
        return s

    def said_by_both(self, listener, program):
        connection, _peer = listener.accept()
        self.addCleanup(connection.close)
        connection.settimeout(20)
        said = b""
        while piece := connection.recv(1000):
            said += piece
        self.assertEqual(said, b"parent, child, parent", program.out)
        program.expect("done")
        self.assertEqual(program.wait(10, output=False), 0)

    def test_asked_for_too_early(self):
        listener = self.listener(0)
        first = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(first.close)
        first.connect((self.a.ip, PORT + 1))  # the queue is full now: requests get no answer
        program = self.python(self.b, "tcp_fork_again.py", "refused", self.a.ip, PORT + 1, start=True, preload=True)
        program.expect("the first has asked")
        listener.accept()[0].close()
        self.said_by_both(listener, program)

    def test_given_back_and_adopted(self):
        listener = self.listener(1)
        library = os.path.join(os.path.dirname(preload_env()["LD_PRELOAD"]), "libvma_move.so")
        program = self.python(self.b, "tcp_fork_again.py", "adopted", self.a.ip, PORT + 1, start=True,
                              env=preload_env(library))
        self.said_by_both(listener, program)


if __name__ == "__main__":
    unittest.main(verbosity=2)
