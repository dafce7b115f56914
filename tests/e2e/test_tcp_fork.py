"""fork with live TCP connections: the child, the parent or both go on with them; every byte arrives (issue: hand-back)."""

import os
import socket
import sys
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

    def served(self, kind, connections):
        server = self.python(self.b, "tcp_fork_server.py", kind, self.b.ip, PORT, connections, start=True, preload=True)
        server.expect("ready")
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
