"""Unmodified redis-server and redis-benchmark: 50 clients, pipelines, values of a megabyte; preloaded at both ends and at each.
Replication: a replica and BGSAVE while clients write; all copies of the data have one digest.
"""

import itertools
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually, preload_env
from programs import ProgramCase, need

ENDS = {"both": (True, True), "client": (True, False), "server": (False, True), "kernel": (False, False)}
SLACK = 300  # segments of connections that come before the server first polls its listener, or after it is closed
ports = itertools.count(6400)
RUNS = {
    "default tests": (["-c", "50", "-n", "2000"], 60000),
    "pipelined": (["-c", "50", "-n", "50000", "-P", "16", "-t", "set,get,incr,lpush"], 10000),
    "large values": (["-c", "10", "-n", "300", "-d", str(1 << 20), "-t", "set,get"], 500),
}


class Redis(case.NetCase):
    def redis(self, run, ends):
        options, least = RUNS[run]
        client, server = ends
        port = next(ports)
        quiet = preload_env(VMA_TRACELEVEL="warning")
        process = self.b.start(["redis-server", "--bind", self.b.ip, "--port", port, "--save", "", "--appendonly", "no",
                                "--protected-mode", "no"], env=quiet if server else None, cpu=1)
        self.b.wait_bound("tcp", port, process=process)
        process.expect("Ready to accept connections")
        before = {s: s.counters("Tcp")["InSegs"] for s in (self.a, self.b)}
        done = self.a.run(["redis-benchmark", "-h", self.b.ip, "-p", port, "--csv", *options],
                          env=quiet if client else None, cpu=0, timeout=200)
        self.assert_ok(done)
        results = re.findall(r'(?m)^"([^"]+)","([0-9.]+)"', done.out)
        print(f"{run}, preloaded client {client} server {server}: "
              + ", ".join(f"{name.split(' (')[0]} {float(rate):.0f}" for name, rate in results), flush=True)
        self.assertGreaterEqual(len(results), options[-1].count(",") + 1 if "-t" in options else 15, done.out)
        for name, rate in results:
            self.assertGreater(float(rate), 0, (name, done.out))
        for word in ("ERR", "Error", "error"):
            self.assertNotIn(word, done.out)
        for space, preloaded in ((self.a, client), (self.b, server)):
            seen = space.counters("Tcp")["InSegs"] - before[space]
            if preloaded:
                self.assertLess(seen, SLACK, f"the kernel of {space.letter} saw {seen} segments")
            else:
                self.assertGreater(seen, least // 4, f"the kernel of {space.letter} saw only {seen} segments")
        process.stop()

    def each(self, runs, ends):
        for run in runs:
            for name in ends:
                with self.subTest(run=run, ends=name):
                    self.redis(run, ENDS[name])


class Smoke(Redis):
    def test_pipelined(self):
        self.each(("pipelined",), ("both", "server"))

    def test_large_values(self):
        self.each(("large values",), ("both",))


class Full(Redis):
    def test_all(self):
        self.each(RUNS, ENDS)


class Replicated(ProgramCase):
    """The server in b, its replica in c; the client in a."""

    letters = "abc"
    PLACES = {"client": "a", "server": "b", "replica": "c"}
    ROLES = {"kernel": (), "all": ("client", "server", "replica"), "server": ("server",), "replica": ("replica",)}
    ALL = tuple(ROLES)

    def start(self, space, role, ends, *more):
        folder = self.path(f"{role}-{ends.name}")
        os.makedirs(folder, exist_ok=True)
        port = next(ports)
        process = space.start([need("redis-server", "redis-server"), "--bind", "0.0.0.0", "--port", port, "--dir", folder, "--save", "",
                               "--protected-mode", "no", "--enable-debug-command", "yes", *more], env=ends.env(role))
        process.expect("Ready to accept connections")
        return process, port

    def ask(self, port, *words, ip=None, env=None):
        done = (self.b if ip else self.a).run(["redis-cli", "-h", ip or self.b.ip, "-p", port, *words], env=env, timeout=60)
        self.assert_ok(done)
        self.assertNotIn("ERR", done.out)
        return done.out.strip()

    def info(self, ip, port, section, key):
        return re.search(rf"(?m)^{key}:(.*?)\r?$", self.ask(port, "info", section, ip=ip)).group(1)

    def replicated(self, ends, diskless, requests):
        client = ends.env("client")
        server, port = self.start(self.b, "server", ends, "--repl-diskless-sync", "yes" if diskless else "no",
                                  "--repl-diskless-sync-delay", "0", "--appendonly", "yes")
        self.ask(port, "debug", "populate", "20000", "filled", "1000", env=client)
        # The listener is the kernel's after the first fork, each of the 120 connections for its first calls, and for good
        # when a fork finds it there, as the replica's. What a forked child sends the replica comes from the kernel.
        with self.segments(ends, least=5000, slack=max(9000, requests // 5), unseen=("replica", "server") if diskless else ("replica",)):
            load = self.a.start(["redis-benchmark", "-h", self.b.ip, "-p", port, "-c", "20", "-n", requests, "-r", "100000", "-d",
                                 "200", "-P", "4", "-t", "set,incr,lpush,sadd,hset,zadd", "--csv"], env=client)
            self.assertEqual(self.ask(port, "bgsave"), "Background saving started")
            copy, copy_port = self.start(self.c, "replica", ends, "--replicaof", f"{self.b.addresses['c']} {port}")
            self.assertTrue(eventually(lambda: self.info(self.c.ip, copy_port, "replication", "master_link_status") == "up", 30, 0.1),
                            f"no link\n{copy.out}\n{server.out}")
            self.assertEqual(load.wait(120), 0, load.out)
        self.assertEqual(load.out.count("\n") - 1, 6, load.out)  # a head line and one for each test
        self.assertEqual(self.ask(port, "set", "last", "word"), "OK")
        self.assertEqual(self.ask(port, "wait", "1", "20000"), "1", copy.out)
        digest = self.ask(port, "debug", "digest")
        self.assertRegex(digest, "^[0-9a-f]{40}$")
        self.assertEqual(self.ask(copy_port, "debug", "digest", ip=self.c.ip), digest)
        self.assertEqual(self.ask(copy_port, "get", "last", ip=self.c.ip), "word")
        self.saved(server, port, digest)
        self.promoted(copy, copy_port, port)

    def saved(self, server, port, digest):
        """What BGSAVE writes while the server goes on, and the append-only file rewritten by a fork, hold the same data."""
        self.assertTrue(eventually(lambda: self.info(None, port, "persistence", "rdb_bgsave_in_progress") == "0", 30, 0.1))
        self.ask(port, "bgsave")
        self.ask(port, "bgrewriteaof")
        for key in ("rdb_bgsave_in_progress", "aof_rewrite_scheduled", "aof_rewrite_in_progress"):
            self.assertTrue(eventually(lambda key=key: self.info(None, port, "persistence", key) == "0", 30, 0.1), key)
        for key in ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"):
            self.assertEqual(self.info(None, port, "persistence", key), "ok", server.out)
        self.assertEqual(self.ask(port, "debug", "reload"), "OK")
        self.assertEqual(self.ask(port, "debug", "digest"), digest)
        self.assertEqual(self.ask(port, "debug", "loadaof"), "OK")
        self.assertEqual(self.ask(port, "debug", "digest"), digest)

    def promoted(self, copy, copy_port, port):
        """The server dies; the replica notices and becomes a server."""
        self.assertEqual(self.info(None, port, "replication", "connected_slaves"), "1", copy.out)
        self.assertIn(self.a.run(["redis-cli", "-h", self.b.ip, "-p", port, "shutdown", "nosave"]).rc, (0, 1))
        self.assertTrue(eventually(lambda: self.info(self.c.ip, copy_port, "replication", "master_link_status") == "down", 20, 0.1),
                        copy.out)
        self.assertEqual(self.ask(copy_port, "replicaof", "no", "one", ip=self.c.ip), "OK")
        self.assertEqual(self.ask(copy_port, "set", "last", "words", ip=self.c.ip), "OK")
        self.assertIn(copy.stop(), (0, -2), copy.out)

    def runs(self, names, diskless, requests):
        for name in names:
            with self.preloaded(name) as ends:
                self.replicated(ends, diskless, requests)


class ReplicatedSmoke(Replicated):
    def test_replica(self):
        self.runs(("all",), False, 20000)


class ReplicatedFull(Replicated):
    def test_replica(self):
        self.runs(self.ALL, False, 100000)

    def test_replica_diskless(self):
        """A forked child writes the data to the replica's connection: the server hands that back."""
        self.runs(self.ALL, True, 100000)


if __name__ == "__main__":
    del Redis, Replicated, ProgramCase
    case.main()
