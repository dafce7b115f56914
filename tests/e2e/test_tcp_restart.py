"""A server that closes its connection first and ends gets its port again at once, as on the kernel: what is left of the
connection is in TIME_WAIT there and must not be in the way of a listener with SO_REUSEADDR.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import preload_env

PORT = 7990
SERVER = """
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen()
s.settimeout(0)
try:
    s.accept()
except BlockingIOError:
    pass
s.settimeout(10)
print("ready", flush=True)
c, _ = s.accept()
c.sendall(b"end")
c.close()
"""


class Restart(case.NetCase):
    def restart(self, env, port):
        for _ in range(3):
            server = self.b.start(["/usr/bin/python3", "-u", "-c", SERVER, self.b.ip, port], env=env)
            server.expect("ready")
            with self.a.socket() as client:
                client.settimeout(10)
                client.connect((self.b.ip, port))
                data = b""
                while piece := client.recv(100):
                    data += piece
                self.assertEqual(data, b"end")
            self.assertEqual(server.wait(10), 0, server.out)

    def test_kernel(self):
        self.restart(None, PORT)

    def test_preloaded(self):
        self.restart(preload_env(), PORT + 1)


if __name__ == "__main__":
    case.main()
