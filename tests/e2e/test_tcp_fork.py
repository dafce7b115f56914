"""fork with live TCP connections: the child, the parent or both go on with them; every byte arrives (issue: hand-back)."""

import os
import socket
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
