"""Servers made of processes: fork per connection, prefork, multiprocessing; nginx with workers and reload."""

import concurrent.futures
import os
import re
import signal
import shutil
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import eventually, preload_env

PORT = 7600
BYTES = 30_000


class Echo(case.NetCase):
    preload = True
    side_by_side = 20

    def served(self, kind, port, connections, workers=4):
        server = self.python(self.b, "fork_servers.py", kind, self.b.ip, port, workers, start=True, preload=self.preload)
        server.expect("ready")
        before = {space.letter: space.counters("Tcp") for space in (self.a, self.b)}

        def one(seed):
            with self.a.call(lambda: duplex.dial(self.b.ip, port)) as s:
                duplex.exchange(s, seed, BYTES)

        with concurrent.futures.ThreadPoolExecutor(self.side_by_side) as crowd:
            for done in [crowd.submit(one, seed) for seed in range(connections)]:
                try:
                    done.result(3 * duplex.LIMIT)
                except (OSError, AssertionError) as error:
                    self.fail(f"{kind}: {error!r}\n{server.out}")
        resets = self.a.counters("Tcp")["EstabResets"] - before["a"]["EstabResets"]
        self.assertEqual(resets, 0, f"{kind}: {resets} connections were reset\n{server.out}")
        server.send_signal(signal.SIGTERM)
        server.expect("stopped", 20)
        self.assertEqual(server.wait(20), 0, server.out)
        self.assertTrue(eventually(lambda: not self.b.pids(), 5), "a process is left")

    def test_fork_per_connection(self):
        self.served("per_connection", PORT, 200)

    def test_prefork(self):
        self.side_by_side = 4  # python workers serve one connection at a time
        self.served("prefork", PORT + 1, 60)

    def test_multiprocessing_pool(self):
        self.served("pool", PORT + 2, 20)

    def test_multiprocessing_forkserver(self):
        self.side_by_side = 1
        self.served("forkserver", PORT + 3, 10)


class EchoKernel(Echo):
    """The same without the library: the test itself is right."""
    preload = False


NGINX = """
daemon off;
worker_processes 4;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_timeout 65;
    keepalive_requests 100000000;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{ listen {ip}:{port}; root {folder}/www; }}
}}
"""


class Nginx(case.NetCase):
    """A root master, four workers of user www-data, reloads while requests go on."""

    reloads = 3
    seconds = 5
    connections = 16

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vt-nginx-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o755)
        os.mkdir(f"{self.folder}/www")
        self.content = duplex.pattern(1, 20_000)
        with open(f"{self.folder}/www/file", "wb") as f:
            f.write(self.content)

    def workers(self, master):
        with open(f"/proc/{master}/task/{master}/children") as f:
            return {int(p) for p in f.read().split()}

    def answer(self, port):
        with self.a.call(lambda: duplex.dial(self.b.ip, port)) as s:
            s.sendall(b"GET /file HTTP/1.0\r\n\r\n")
            got = bytearray()
            while piece := s.recv(65536):
                got += piece
        head, _, body = bytes(got).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or body != self.content:
            raise AssertionError(f"{head[:50]!r}, {len(body)} bytes")

    def run_with_reloads(self, preload, port):
        """Requests of one connection each, and wrk on kept connections, while the master reloads. (Failed single requests,
        wrk's counts)."""
        path = f"{self.folder}/nginx.conf"
        with open(path, "w") as f:
            f.write(NGINX.format(folder=self.folder, ip=self.b.ip, port=port))
        env = preload_env() if preload else None
        command = ["nginx", "-p", self.folder, "-c", path]
        server = self.b.start(command, env=env)
        self.b.wait_bound("tcp", port, process=server)
        self.assertTrue(eventually(lambda: len(self.workers(server.pid)) == 4, 10))
        failed, good, over = [], [], threading.Event()

        def ask():
            while not over.is_set():
                try:
                    self.answer(port)
                    good.append(1)
                except (OSError, AssertionError) as error:
                    failed.append(repr(error))

        asker = threading.Thread(target=ask)
        asker.start()
        wrk = self.a.start(["wrk", "-t1", f"-c{self.connections}", f"-d{self.seconds}s", f"http://{self.b.ip}:{port}/file"])
        try:
            for _ in range(self.reloads):
                old = self.workers(server.pid)
                served = len(good)
                self.assertTrue(eventually(lambda: len(good) > served + 5, 10), "no requests are served")
                done = self.b.run([*command, "-s", "reload"], env=env, timeout=20)
                self.assert_ok(done)
                self.assertTrue(eventually(lambda: not self.workers(server.pid) & old, 10), "old workers stay")
                self.assertEqual(len(self.workers(server.pid)), 4)
            wrk.wait(self.seconds + 20)
        finally:
            over.set()
            asker.join(duplex.LIMIT)
        done = self.b.run([*command, "-s", "quit"], env=env, timeout=20)
        self.assert_ok(done)
        self.assertEqual(server.wait(20), 0, server.out)
        # The broker ends with its last client, not before it.
        self.assertTrue(eventually(lambda: self.b.pids() == [], 5), "a process stays")
        with open(f"{self.folder}/error.log") as f:
            errors = [line for line in f if re.search(r"\[(error|crit|alert|emerg)\]", line)]
        self.assertEqual(errors, [], errors)
        counts = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", wrk.out)
        counts = tuple(map(int, counts.groups())) if counts else (0, 0, 0, 0)
        self.assertNotIn("Non-2xx", wrk.out)
        requests = int(re.search(r"(\d+) requests in", wrk.out).group(1))
        print(f"  {'preloaded' if preload else 'kernel'}: {len(good)} single requests, {requests} kept; "
              f"wrk connect {counts[0]} read {counts[1]} write {counts[2]} timeout {counts[3]}", flush=True)
        self.assertGreater(requests, 100, wrk.out)
        return failed, counts

    def test_reload(self):
        kernel_failed, _ = self.run_with_reloads(False, PORT + 20)
        self.assertEqual(kernel_failed, [])
        failed, (connect, read, write, timeout) = self.run_with_reloads(True, PORT + 21)
        self.assertEqual(failed, [])
        self.assertEqual((connect, timeout), (0, 0))
        # A worker that leaves closes its kept connections, at most each once per reload: wrk counts what was on the way.
        self.assertLessEqual(read + write, self.connections * self.reloads)


if __name__ == "__main__":
    unittest.main(verbosity=2)
