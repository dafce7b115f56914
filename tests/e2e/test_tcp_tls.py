"""TLS: nginx with OpenSSL, four workers and kept connections, reloaded under load; openssl s_server and s_client."""

import itertools
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually
from programs import ProgramCase, need, seeded_file

ports = itertools.count(8440)

NGINX = """
daemon off;
worker_processes 4;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_timeout 65;
    keepalive_requests 100000000;
    ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem;
    ssl_protocols {protocols};
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{ listen {ip}:{port} ssl http2; root {folder}/www; }}
    server {{ listen {ip}:{plain} ssl; root {folder}/www; }}
}}
"""


class Tls(ProgramCase):
    size = 16 << 20

    def setUp(self):
        super().setUp()
        self.certificate(self.b.ip)
        os.mkdir(self.path("www"))
        self.sha = seeded_file(self.path("www/large"), self.size)
        seeded_file(self.path("www/small"), 2000, 1)

    # ---- nginx

    def nginx(self, ends, protocols="TLSv1.2 TLSv1.3"):
        self.h2, self.port = next(ports), next(ports)
        path = self.write("nginx.conf", NGINX.format(folder=self.folder, ip=self.b.ip, port=self.h2, plain=self.port,
                                                     protocols=protocols))
        self.command = ["nginx", "-p", self.folder, "-c", path]
        server = self.b.start(self.command, env=ends.env("server"))
        self.b.wait_bound("tcp", self.port, process=server)
        self.assertTrue(eventually(lambda: len(self.workers(server)) == 4, 10), server.out)
        return server

    @staticmethod
    def workers(server):
        with open(f"/proc/{server.pid}/task/{server.pid}/children") as f:
            return {int(p) for p in f.read().split()}

    def fetch(self, ends, port, *options):
        words = ["curl", "-sS", "-f", "-m", "60", "--cacert", self.path("cert.pem"), *options, f"https://{self.b.ip}:{port}/large"]
        done = self.a.run(["bash", "-o", "pipefail", "-c", " ".join([*ends.words("client"), *words, "| sha256sum"])], timeout=70)
        self.assert_ok(done)
        self.assertEqual(done.out.split()[0], self.sha, done.out)

    def files(self, names):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.nginx(ends)
                # A connection is taken over after some calls, and a large file is most of it.
                with self.segments(ends, least=self.size >> 19, slack=max(400, self.size >> 16)):
                    self.fetch(ends, self.port, "--tlsv1.3")
                    self.fetch(ends, self.port, "--tls-max", "1.2")
                    self.fetch(ends, self.h2, "--http2")
                self.quit(ends, server)

    def quit(self, ends, server):
        self.assert_ok(self.b.run([*self.command, "-s", "quit"], env=ends.env("server"), timeout=20))
        self.assertEqual(server.wait(30), 0, server.out)
        with open(self.path("error.log")) as f:
            errors = [line for line in f if re.search(r"\[(error|crit|alert|emerg)\]", line)]
        self.assertEqual(errors, [])

    def load(self, names, seconds, reloads):
        """wrk on kept connections while the master reloads: nothing but the connections of workers that leave may end."""
        for name in names:
            with self.preloaded(name) as ends:
                server = self.nginx(ends)
                wrk = self.a.start(["wrk", "-t2", "-c32", f"-d{seconds}s", f"https://{self.b.ip}:{self.port}/small"],
                                   env=ends.env("client"))
                for _ in range(reloads):
                    self.fetch(ends, self.port)  # also that requests are served between two reloads
                    old = self.workers(server)
                    self.assert_ok(self.b.run([*self.command, "-s", "reload"], env=ends.env("server"), timeout=20))
                    self.assertTrue(eventually(lambda: len(self.workers(server) - old) == 4, 20), server.out)
                    self.assertTrue(eventually(lambda: not self.workers(server) & old, 20), "old workers stay")
                self.assertEqual(wrk.wait(seconds + 30), 0, wrk.out)
                requests = int(re.search(r"(\d+) requests in", wrk.out).group(1))
                counts = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", wrk.out)
                counts = tuple(map(int, counts.groups())) if counts else (0, 0, 0, 0)
                print(f"  {requests / seconds:.0f} requests/s, errors {counts}", flush=True)
                self.assertGreater(requests, 100 * seconds, wrk.out)
                self.assertNotIn("Non-2xx", wrk.out)
                self.assertEqual((counts[0], counts[3]), (0, 0), wrk.out)
                # A connection may meet a second worker that is about to leave.
                self.assertLessEqual(counts[1] + counts[2], 2 * 32 * reloads, wrk.out)
                self.quit(ends, server)

    # ---- openssl

    def s_server(self, ends, *words):
        self.port = next(ports)
        server = self.b.start([need("openssl", "openssl"), "s_server", "-accept", f"{self.b.ip}:{self.port}", "-cert",
                               self.path("cert.pem"), "-key", self.path("key.pem"), "-quiet", *words], env=ends.env("server"),
                              cwd=self.path("www"))
        self.b.wait_bound("tcp", self.port, process=server)
        return server

    def s_client(self, ends, command):
        """A shell line in which CLIENT is openssl s_client, quiet and strict about the certificate."""
        client = " ".join([*ends.words("client"), "openssl", "s_client", "-connect", f"{self.b.ip}:{self.port}", "-CAfile",
                           self.path("cert.pem"), "-verify_return_error", "-quiet"])
        done = self.a.run(["bash", "-o", "pipefail", "-c", command.replace("CLIENT", client)], timeout=60)
        return done

    def openssl(self, names, times):
        for name in names:
            with self.preloaded(name) as ends:
                server = self.s_server(ends, "-WWW")
                with self.segments(ends, least=self.size >> 18):
                    for i in range(times):
                        version = ("-tls1_2", "-tls1_3")[i % 2]
                        done = self.s_client(ends, rf"printf 'GET /large HTTP/1.0\r\n\r\n' | CLIENT {version} 2>/dev/null "
                                                   rf"| sed '1,/^\r$/d' | sha256sum")
                        self.assertEqual(done.out.split()[0], self.sha, f"{done.out}\n{server.out}")
                self.assertTrue(server.running(), server.out)
                server.kill()
                self.reversed_lines(ends)

    def reversed_lines(self, ends):
        """A dialogue: every line comes back reversed."""
        server = self.s_server(ends, "-rev")
        lines = [f"line {i} {'z' * (i % 100)}" for i in range(500)]
        with open(self.path("lines"), "w") as f:
            f.write("\n".join([*lines, "CLOSE"]) + "\n")
        done = self.s_client(ends, f"CLIENT 2>/dev/null < {self.path('lines')}")
        self.assertEqual(done.out.splitlines(), [line[::-1] for line in lines], server.out)


class Smoke(Tls):
    def test_nginx(self):
        self.files(("both",))

    def test_openssl(self):
        self.openssl(("both",), 2)


class Full(Tls):
    size = 100 << 20

    def test_nginx(self):
        self.files(self.ALL)

    def test_openssl(self):
        self.openssl(self.ALL, 6)


class Load(Tls):
    size = 4 << 20

    def test_reload(self):
        self.load(self.ALL, 10, 4)


if __name__ == "__main__":
    del Tls, ProgramCase
    case.main()
