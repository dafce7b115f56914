"""File servers: rsync's daemon, git's daemon, git over http (nginx and fcgiwrap). Trees and histories are equal at both ends."""

import itertools
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually
from programs import ProgramCase, digest, need, seeded_file

ports = itertools.count(8730)

RSYNCD = """
uid = nobody
gid = nogroup
use chroot = yes
max connections = 20
pid file = {folder}/rsyncd-{port}.pid
log file = {folder}/rsyncd.log
[out]
    path = {folder}/out
    read only = yes
[in]
    path = {folder}/in
    read only = no
"""

NGINX = """
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
user root;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{
        listen {ip}:{port};
        location / {{
            fastcgi_pass unix:{folder}/fcgi.sock;
            fastcgi_param SCRIPT_FILENAME {backend};
            fastcgi_param PATH_INFO $uri;
            fastcgi_param GIT_PROJECT_ROOT {folder}/served;
            fastcgi_param GIT_HTTP_EXPORT_ALL 1;
            fastcgi_param REMOTE_USER tester;
            fastcgi_param REMOTE_ADDR $remote_addr;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param QUERY_STRING $query_string;
            fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length;
            fastcgi_param HTTP_CONTENT_ENCODING $http_content_encoding;
            fastcgi_param HTTP_GIT_PROTOCOL $http_git_protocol;
        }}
    }}
}}
"""


def tree(folder):
    """{path below the folder: sha256}."""
    return {os.path.relpath(os.path.join(at, name), folder): digest(os.path.join(at, name))
            for at, _, names in os.walk(folder) for name in names}


class Rsync(ProgramCase):
    large, small = 20 << 20, 300

    def setUp(self):
        super().setUp()
        os.makedirs(self.path("out"))
        for i in range(self.small):
            os.makedirs(self.path(f"out/d{i % 10}"), exist_ok=True)
            seeded_file(self.path(f"out/d{i % 10}/f{i}"), i * 37, i)
        seeded_file(self.path("out/large"), self.large)

    def daemon(self, ends):
        self.port = next(ports)
        path = self.write("rsyncd.conf", RSYNCD.format(folder=self.folder, port=self.port))
        server = self.b.start([need("rsync", "rsync"), "--daemon", "--no-detach", "--address", self.b.ip, "--port", self.port,
                               "--config", path], env=ends.env("server"))
        self.b.wait_bound("tcp", self.port, process=server)
        return server

    def rsync(self, ends, *words):
        done = self.a.run(["rsync", "-a", "--no-owner", "--no-group", "--timeout=30", *words], env=ends.env("client"), timeout=60)
        with open(self.path("rsyncd.log")) as f:
            self.assertEqual(done.rc, 0, f"{done.out}\n{f.read()}")
        return done.out

    def run_of(self, ends):
        """There, back, and only the difference after a change."""
        self.daemon(ends)
        module = f"rsync://{self.b.ip}:{self.port}"
        want, here = tree(self.path("out")), self.path(f"here-{ends.name}")
        shutil.rmtree(self.path("in"), ignore_errors=True)
        os.makedirs(self.path("in"))
        shutil.chown(self.path("in"), "nobody", "nogroup")
        # Each connection is a child's, made before the fork: the server's end stays the kernel's. So does the client's when
        # it receives, for it shares the connection with a child then.
        with self.segments(ends, least=self.large >> 18, unseen=("client", "server") if ends else ()):
            self.rsync(ends, f"{module}/out/", here + "/")
        self.assertEqual(tree(here), want)
        with self.segments(ends, least=self.large >> 20, unseen=("server",) if ends else ()):
            self.rsync(ends, here + "/", f"{module}/in/")
            self.assertEqual(tree(self.path("in")), want)
            with open(os.path.join(here, "large"), "r+b") as f:
                f.seek(self.large // 2)
                f.write(b"changed here")
            os.remove(os.path.join(here, "d0/f0"))
            out = self.rsync(ends, "--delete", "--checksum", "--no-whole-file", "--stats", here + "/", f"{module}/in/")
        self.assertEqual(tree(self.path("in")), tree(here))
        literal = int(re.search(r"Literal data: ([\d,]+)", out).group(1).replace(",", ""))
        self.assertTrue(0 < literal < 100_000, out)

    def runs(self, names):
        for name in names:
            with self.preloaded(name) as ends:
                self.run_of(ends)


class RsyncSmoke(Rsync):
    def test_rsync(self):
        self.runs(("both",))


class RsyncFull(Rsync):
    large, small = 200 << 20, 2000

    def test_rsync(self):
        self.runs(self.ALL)


class Git(ProgramCase):
    commits = 20

    def git(self, *words, cwd=None, env=None, space=None):
        line = ["git", "-c", "user.name=tester", "-c", "user.email=tester@vt.test", "-c", "safe.directory=*", *words]
        variables = {"HOME": self.folder, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", **(env or {})}
        done = (space or self.a).run(line, env=variables, cwd=cwd or self.folder, timeout=60)
        self.assert_ok(done)
        return done.out.strip()

    def setUp(self):
        super().setUp()
        work = self.path("work")
        self.write(".gitconfig", "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n")
        self.git("init", "-q", work)
        for i in range(self.commits):
            seeded_file(os.path.join(work, f"f{i % 7}"), 200_000, i)
            self.git("add", ".", cwd=work)
            self.git("commit", "-q", "-m", f"change {i}", cwd=work)
        os.mkdir(self.path("served"))

    def served(self, name):
        """A bare repository of its own for each run."""
        path = self.path(f"served/{name}.git")
        self.git("clone", "-q", "--bare", self.path("work"), path)
        self.git("config", "http.receivepack", "true", cwd=path)
        return path

    def there_and_back(self, ends, url, bare):
        """clone, commit, push, fetch by another clone; both ends whole and equal."""
        env = ends.env("client")
        one, two = self.path(f"one-{ends.name}"), self.path(f"two-{ends.name}")
        self.git("clone", "-q", url, one, env=env)
        self.git("clone", "-q", "--depth", "3", url, two, env=env)
        self.assertEqual(self.git("rev-parse", "HEAD", cwd=one), self.git("rev-parse", "HEAD", cwd=self.path("work")))
        seeded_file(os.path.join(one, "new"), 5 << 20, 99)
        self.git("add", ".", cwd=one)
        self.git("commit", "-q", "-m", "new", cwd=one)
        self.git("push", "-q", "origin", "HEAD", cwd=one, env=env)
        self.git("pull", "-q", "--ff-only", cwd=two, env=env)
        head = self.git("rev-parse", "HEAD", cwd=one)
        for repository in (bare, two):
            self.assertEqual(self.git("rev-parse", "HEAD", cwd=repository), head)
            self.git("fsck", "--strict", cwd=repository)
        self.assertEqual(digest(os.path.join(one, "new")), digest(os.path.join(two, "new")))

    def daemon(self, names):
        """The connection becomes standard input and output of programs that daemon and client start: handed back."""
        for name in names:
            with self.preloaded(name) as ends:
                port = next(ports)
                bare = self.served(name)
                server = self.b.start(["git", "daemon", f"--listen={self.b.ip}", f"--port={port}", "--reuseaddr", "--export-all",
                                       f"--base-path={self.path('served')}", "--enable=receive-pack", "--verbose"],
                                      env={"HOME": self.folder, **(ends.env("server") or {})})
                self.b.wait_bound("tcp", port, process=server)
                with self.segments(ends, least=50, unseen=("client", "server") if ends else ()):
                    self.there_and_back(ends, f"git://{self.b.ip}:{port}/{name}.git", bare)
                self.assertTrue(server.running(), server.out)

    def http(self, names):
        for name in names:
            with self.preloaded(name) as ends:
                port = next(ports)
                bare = self.served(name)
                path = self.write("nginx.conf", NGINX.format(folder=self.folder, ip=self.b.ip, port=port,
                                                             backend="/usr/lib/git-core/git-http-backend"))
                env = ends.env("server")
                socket = self.path("fcgi.sock")
                fcgi = self.b.start([need("fcgiwrap", "fcgiwrap"), "-s", f"unix:{socket}", "-c", "4"],
                                    env={"HOME": self.folder, **(env or {})})
                self.assertTrue(eventually(lambda: os.path.exists(socket) or not fcgi.running(), 10) and fcgi.running(), fcgi.out)
                server = self.b.start(["nginx", "-p", self.folder, "-c", path], env=env)
                self.b.wait_bound("tcp", port, process=server)
                with self.segments(ends, least=50, unseen=("server",) if ends else ()):
                    self.there_and_back(ends, f"http://{self.b.ip}:{port}/{name}.git", bare)
                self.assertTrue(server.running() and fcgi.running(), f"{server.out}\n{fcgi.out}")
                os.remove(socket)


class GitSmoke(Git):
    commits = 5

    def test_daemon(self):
        self.daemon(("both",))


class GitFull(Git):
    def test_daemon(self):
        self.daemon(self.ALL)

    def test_http(self):
        self.http(self.ALL)


if __name__ == "__main__":
    del Rsync, Git, ProgramCase
    case.main()
