"""A program that ends with unsent data gets its port again at once, as on the kernel: its connection is the kernel's now and must
not be in the way of a listener with SO_REUSEADDR.
"""

import os
import socket
import sys
import tempfile

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
s.setblocking(False)
try:
    s.accept()
except BlockingIOError:
    pass
print("ready", flush=True)
s.setblocking(True)
c, _ = s.accept()
c.setblocking(False)
print("sent", c.send(bytes(1 << 20)), flush=True)
c.close()
"""


class Restart(case.NetCase):
    def restart(self, env, port):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(SERVER)
            script.flush()
            clients = []
            for _ in range(3):
                server = self.b.start(["/usr/bin/python3", script.name, self.b.ip, port], env=env)
                server.expect("(?m)^ready$")
                client = self.a.socket()
                self.addCleanup(client.close)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(10)
                client.connect((self.b.ip, port))
                sent = int(server.expect(r"(?m)^sent (\d+)$").group(1))
                self.assertGreater(sent, 16384)
                self.assertEqual(server.wait(10), 0, server.out)
                clients.append((client, sent))
            for client, sent in clients:
                while piece := client.recv(1 << 20):
                    sent -= len(piece)
                self.assertEqual(sent, 0)

    def test_kernel(self):
        self.restart(None, PORT)

    def test_preloaded(self):
        self.restart(preload_env(VMA_TRACELEVEL="warning"), PORT + 1)


if __name__ == "__main__":
    case.main()
