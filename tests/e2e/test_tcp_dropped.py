"""Servers that are started as root and serve as an ordinary user: accelerated, and live connections of theirs still move to the
kernel. nginx with workers of www-data; redis whose debugger forks a child that goes on with the client's connection.
"""

import os
import shutil
import socket
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, preload_env

PORT = 7950
NGINX = """
daemon off; master_process on; worker_processes 4; user www-data;
pid {folder}/nginx.pid; error_log stderr notice;
events {{ worker_connections 64; }}
http {{ access_log off; keepalive_requests 100000; sendfile off;
  client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
  uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  server {{ listen {ip}:{port}; root {folder}; location = /small {{ return 200 "small"; }} }} }}
"""


class Dropped(case.NetCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-dropped-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o1777)
        self.env = {**preload_env(), "VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "warning"}
        self.resets = self.b.counters("Tcp")["OutRsts"]

    def no_resets(self):
        self.assertEqual(self.b.counters("Tcp")["OutRsts"], self.resets)

    def client(self, port, receive_buffer=None):
        s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(s.close)
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(10)
        s.connect((self.b.ip, port))
        return s

    def offloaded(self):
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain"], timeout=20)
        return done.out.count("offloaded: packet ring"), done.out

    def user_of_sockets(self, name):
        """Effective user ids of the processes of that name in the server's namespace."""
        users = set()
        for pid in self.b.pids():
            try:
                with open(f"/proc/{pid}/status", encoding="ascii") as file:
                    fields = dict(line.split(":", 1) for line in file)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended since it was listed
            if fields["Name"].strip() == name:
                users.add(int(fields["Uid"].split()[1]))
        return users

    def get(self, s, path, times):
        with s.makefile("rb") as stream:
            for _ in range(times):
                s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                self.assertIn(b"200", stream.readline())
                length = 0
                while (line := stream.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                self.assertEqual(len(stream.read(length)), length)

    def test_nginx(self):
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w") as file:
            file.write(NGINX.format(folder=self.folder, ip=self.b.ip, port=PORT))
        content = os.urandom(1 << 16) * 4
        with open(os.path.join(self.folder, "large"), "wb") as file:
            file.write(content)
        server = self.b.start(["nginx", "-p", self.folder, "-c", path], env=self.env)
        self.b.wait_bound("tcp", PORT, process=server)
        self.assertTrue(eventually(lambda: 33 in self.user_of_sockets("nginx")), "no worker of www-data")
        clients = [self.client(PORT, 8192) for _ in range(8)]
        for s in clients:
            self.get(s, "/small", 60)
        count, text = self.offloaded()
        self.assertEqual(count, len(clients), text + server.out)
        # The workers end at once, with answers that the clients have not taken yet.
        for s in clients:
            s.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        heads = [s.recv(4096) for s in clients]
        self.assertEqual(self.b.run(["nginx", "-p", self.folder, "-c", path, "-s", "stop"]).rc, 0)
        self.assertEqual(server.wait(20, output=False), 0, server.out)
        for s, got in zip(clients, heads):
            while piece := s.recv(65536):  # a reset would raise
                got += piece
            body = got[got.index(b"\r\n\r\n") + 4:]
            self.assertGreater(len(body), 8192)
            self.assertEqual(body, content[:len(body)])
        self.no_resets()

    def reply(self, stream):
        """One answer of redis, arrays flattened to text."""
        line = stream.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"*":
            return b" ".join(self.reply(stream) for _ in range(int(rest)))
        if kind == b"$":
            return stream.read(int(rest) + 2)[:-2]
        return rest

    def test_redis(self):
        server = self.b.start(["redis-server", "--bind", self.b.ip, "--port", str(PORT + 1), "--save", "", "--protected-mode",
                               "no", "--loadmodule", os.path.join(os.path.dirname(binary("vma_stats")),
                                                                  "../lib/libredis_drop.so")], env=self.env,
                              cwd=self.folder)
        self.b.wait_bound("tcp", PORT + 1, process=server)
        s = self.client(PORT + 1)
        with s.makefile("rb") as stream:
            for i in range(60):
                s.sendall(f"SET k{i} {i}\r\n".encode())
                self.assertEqual(self.reply(stream), b"OK")
            self.assertEqual(self.user_of_sockets("redis-server"), {65534})
            segments = self.b.counters("Tcp")["InSegs"]
            for i in range(60):
                s.sendall(f"GET k{i}\r\n".encode())
                self.assertEqual(self.reply(stream), str(i).encode())
            self.assertLess(self.b.counters("Tcp")["InSegs"] - segments, 20, "the connection is the kernel's\n" + server.out)
            # The parent closes, a forked child goes on with the connection.
            s.sendall(b"SCRIPT DEBUG YES\r\n")
            self.assertEqual(self.reply(stream), b"OK")
            s.sendall(b"EVAL \"local a = redis.call('get', 'k7')\\nreturn a\" 0\r\n")
            self.assertIn(b"Stopped at 1", self.reply(stream))
            s.sendall(b"*1\r\n$4\r\nnext\r\n")
            self.assertIn(b"Stopped at 2", self.reply(stream))
            s.sendall(b"*2\r\n$5\r\nprint\r\n$1\r\na\r\n")
            self.assertIn(b"\"7\"", self.reply(stream))
            s.sendall(b"*1\r\n$8\r\ncontinue\r\n")
            rest = stream.read()
            self.assertIn(b"endsession", rest)
        self.no_resets()
        other = self.client(PORT + 1)
        with other.makefile("rb") as stream:
            other.sendall(b"GET k8\r\n")
            self.assertEqual(self.reply(stream), b"8")
        self.assertTrue(server.running(), server.out)


if __name__ == "__main__":
    case.main()
