"""Connections that the kernel's listener has accepted in a forked worker are taken over by the library: what the kernel of the
server sees of them is their beginning, and vma_stats shows them offloaded.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, preload_env

PORT = 7900
MESSAGES = 400
CONNECTIONS = 8
FIRST_CALLS = 16  # VMA_ADOPT_AFTER as it is unset
NGINX = """
daemon off; master_process on; worker_processes 4; user root;
pid {folder}/nginx.pid; error_log stderr notice;
events {{ worker_connections 64; }}
http {{ access_log off; keepalive_requests 100000;
  client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
  uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  server {{ listen {ip}:{port}; location / {{ return 200 "{text}"; }} }} }}
"""


class Prefork(case.NetCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-adopt-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.env = {"VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "warning"}

    def client(self, port):
        s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(s.close)
        s.settimeout(10)
        s.connect((self.b.ip, port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def offloaded(self):
        """How many connections vma_stats shows as offloaded, over all processes."""
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain"], timeout=20)
        return len(re.findall(r"(?m)^ +fd \d+ +tcp +\S+ +-> +[\d.]+:\d+ +offloaded", done.out)), done.out

    def resets_and_segments(self):
        return self.b.counters("Tcp")["OutRsts"], self.b.counters("Tcp")["InSegs"]

    def talk(self, s, count, seed):
        for i in range(count):
            text = ((seed << 16) + i).to_bytes(4, "big") * (1 + i % 300)
            s.sendall(text)
            back = b""
            while len(back) < len(text):
                piece = s.recv(65536)
                self.assertTrue(piece, f"connection {seed} ended in message {i}")
                back += piece
            self.assertEqual(back, text)

    def echo(self, env, least, most):
        server = self.python(self.b, "tcp_prefork.py", self.b.ip, PORT, 4, preload=True, env={**self.env, **env},
                             start=True, stdin=subprocess.PIPE)
        server.expect("ready")
        resets, before = self.resets_and_segments()
        clients = [self.client(PORT) for _ in range(CONNECTIONS)]
        for seed, s in enumerate(clients):
            self.talk(s, MESSAGES, seed)
        after, segments = self.resets_and_segments()
        self.assertEqual(after, resets)
        self.assertGreaterEqual(segments - before, least)
        self.assertLess(segments - before, most)
        offloaded, text = self.offloaded()
        for s in clients:
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(s.recv(1), b"")
        self.assertTrue(server.running(), server.out)
        return offloaded, text

    def test_echo_in_workers(self):
        offloaded, text = self.echo({}, CONNECTIONS, CONNECTIONS * (FIRST_CALLS * 3 + 10))
        self.assertEqual(offloaded, CONNECTIONS, text)

    def test_never(self):
        offloaded, text = self.echo({"VMA_ADOPT_AFTER": "0"}, CONNECTIONS * MESSAGES, 1 << 30)
        self.assertEqual(offloaded, 0, text)

    def test_nginx_workers(self):
        text = "x" * 3000
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w") as f:
            f.write(NGINX.format(folder=self.folder, ip=self.b.ip, port=PORT + 1, text=text))
        server = self.b.start(["nginx", "-p", self.folder, "-c", path], env={**preload_env(), **self.env})
        self.b.wait_bound("tcp", PORT + 1, process=server)
        clients = [self.client(PORT + 1) for _ in range(CONNECTIONS)]
        resets, before = self.resets_and_segments()
        for s in clients:
            with s.makefile("rb") as stream:
                for _ in range(100):
                    s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    length = 0
                    self.assertIn(b"200", stream.readline())
                    while (line := stream.readline()) not in (b"\r\n", b""):
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    self.assertEqual(stream.read(length), text.encode())
        after, segments = self.resets_and_segments()
        self.assertEqual(after, resets)
        self.assertLess(segments - before, CONNECTIONS * 60)
        offloaded, shown = self.offloaded()
        self.assertEqual(offloaded, CONNECTIONS, shown)
        for s in clients:
            s.close()
        self.assertTrue(eventually(lambda: self.offloaded()[0] == 0, 10), "closed connections are still shown")


if __name__ == "__main__":
    case.main()
