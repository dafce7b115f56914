"""PostgreSQL, a process per connection, and pgbench; its tables must balance afterwards. A cluster of its own in a temporary
directory, as user postgres, with ambient capabilities and without. A connection that the postmaster accepted before it forks the
backend stays the kernel's, whoever is preloaded; the clients' end is offloaded."""

import itertools
import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from programs import ProgramCase, as_user, need

ports = itertools.count(5500)
BALANCED = ("select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) and "
            "(select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history) and "
            "(select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)")
ROWS = 20000


def program(name):
    """Debian keeps the server's programs in a folder per version."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else need(name, "postgresql")


class Postgres(ProgramCase):
    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o777)  # everything in it belongs to postgres
        self.data = self.path("data")
        subprocess.run([*as_user("postgres", "postgres", ()), program("initdb"), "-D", self.data, "-A", "trust", "-U", "tester",
                        "--no-sync", "--locale=C", "-E", "UTF8"], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)
        with open(f"{self.data}/pg_hba.conf", "a") as f:
            f.write("host all all all trust\n")

    def server(self, ends, capable=True, *settings):
        self.port = next(ports)
        words = ["-D", self.data, "-h", self.b.ip, "-p", self.port, "-k", self.folder, "-F", "-c", "max_connections=60",
                 "-c", "shared_buffers=32MB", *settings]
        server = self.b.start([program("postgres"), *words], env=self.readable(ends.env("server")), cwd=self.folder,
                              prefix=as_user("postgres", "postgres") if capable else as_user("postgres", "postgres", ()))
        server.expect("ready to accept connections", 30)
        return server

    def stop(self, server):
        self.assertEqual(server.stop(timeout=20), 0, server.out)  # SIGINT: the fast way, backends are told to end
        bad = [line for line in server.out.splitlines() if re.search(r"FATAL|PANIC|could not|signal \d", line)]
        self.assertEqual(bad, [], server.out)

    def client(self, ends, name, *words, timeout=100):
        where = ["-h", self.b.ip, "-p", self.port, "-U", "tester"]
        done = self.a.run([program(name), *where, *words], env=ends.env("client"), cwd=self.folder, timeout=timeout)
        self.assert_ok(done)
        return done.out

    def sql(self, ends, text):
        return self.client(ends, "psql", "-d", "postgres", "-X", "-q", "-A", "-t", "-c", text).strip()

    def bench(self, ends, *words):
        out = self.client(ends, "pgbench", *words, "postgres")
        rate = re.search(r"tps = ([0-9.]+)", out)
        self.assertTrue(rate, out)
        self.assertRegex(out, r"number of failed transactions: 0 ")
        processed = int(re.search(r"actually processed: (\d+)", out).group(1))
        print(f"  pgbench {' '.join(words)}: {processed} transactions, {float(rate.group(1)):.0f}/s", flush=True)
        return processed

    def transactions(self, names, count, capable=True):
        """TPC-B-like by the simple protocol, prepared and pipelined reads; a connection for each transaction."""
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends, capable)
                self.client(ends, "pgbench", "-i", "-s", "2", "-q", "postgres")
                with self.segments(ends, least=count, unseen=("server",)):
                    done = self.bench(ends, "-c", "8", "-j", "4", "-t", str(count // 8))
                    self.assertEqual(done, count)
                    self.bench(ends, "-n", "-c", "8", "-j", "2", "-S", "-M", "prepared", "-t", str(count // 4))
                # The default scripts in pgbench insert one row of history for each transaction.
                self.assertEqual(self.sql(ends, "select count(*) from pgbench_history"), str(count))
                self.assertEqual(self.sql(ends, BALANCED), "t")
                self.bench(ends, "-n", "-c", "8", "-j", "4", "-C", "-S", "-t", "20")
                self.stop(server)

    def bulk(self, names):
        """COPY both ways: a table goes out, comes in again and is the same; a cancelled query; many rows by a cursor."""
        for name in names:
            with self.preloaded(name) as ends:
                server = self.server(ends)
                self.sql(ends, f"create table t as select i, md5(i::text) || repeat('x', i % 2000) as v from generate_series(1, {ROWS}) i")
                fingerprint = "select count(*), md5(string_agg(v, ',' order by i)) from {}"
                before = self.sql(ends, fingerprint.format("t"))
                copy = self.path(f"copy-{name}")
                with self.segments(ends, least=200, unseen=("server",)):
                    self.sql(ends, f"\\copy t to '{copy}'")
                    self.sql(ends, "create table u (i int, v text)")
                    self.sql(ends, f"\\copy u from '{copy}'")
                self.assertEqual(self.sql(ends, fingerprint.format("u")), before)
                self.assertTrue(before.startswith(f"{ROWS}|"), before)
                refused = self.a.run([program("psql"), "-h", self.b.ip, "-p", self.port, "-U", "tester", "-d", "postgres", "-X",
                                      "-c", "set statement_timeout = 300; select pg_sleep(30)"], env=ends.env("client"))
                self.assertEqual(refused.rc, 1, refused.out)
                self.assertIn("statement timeout", refused.out)
                self.sql(ends, "drop table t; drop table u")
                self.stop(server)


class Full(Postgres):
    def test_transactions(self):
        self.transactions(self.ALL, 4000)

    def test_bulk(self):
        self.bulk(self.ALL)

    def test_without_capabilities(self):
        self.transactions(("server",), 800, capable=False)


if __name__ == "__main__":
    del Postgres, ProgramCase
    case.main()
