"""SYNs from random sources at the full rate of one core, to the port of a preloaded server: the transfer of a client that is
connected goes on, new clients still get in, memory stays what it was, and the statistics tell of the cookies.
"""

import itertools
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, preload_env

ports = itertools.count(7600)


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


class Flooded(case.NetCase):
    def drops(self, pid, directory):
        """The server's counters of dropped frames, summed over its rings."""
        done = self.b.run([binary("vma_stats"), "-k", directory, "-p", pid, "--json"])
        self.assert_ok(done)
        total = {}
        for process in json.loads(done.out)["processes"]:
            for ring in process["rings"]:
                for name, count in ring["drops"].items():
                    total[name] = total.get(name, 0) + count
        return total

    def flood(self, seconds):
        port = next(ports)
        seed = int.from_bytes(os.urandom(3))
        directory = self.enterContext(tempfile.TemporaryDirectory())
        env = preload_env(VMA_TRACELEVEL="warning", VMA_STATS_SHMEM_DIR=directory)
        serve = self.python(self.b, "tcp_goodput.py", "serve", self.b.ip, port, 100000, 1, env=env, start=True, cpu=1)
        serve.expect("ready")
        mac = self.b.run(["cat", f"/sys/class/net/{self.b.dev}/address"]).out.strip()
        quiet = 1.0
        talk = self.python(self.a, "tcp_goodput.py", "flow", self.b.ip, port, seconds + 2 * quiet + 1, 1, start=True, cpu=0)
        talk.expect(r"at \S+ [1-9]")
        before = resident_kib(serve.pid)
        self.assertTrue(eventually(lambda: len(re.findall("(?m)^at ", talk.out)) > 8, 10))
        flood = self.a.start([binary("syn_flood"), self.a.dev, mac, self.b.ip, port, seconds, seed], cpu=0)
        most = before

        def look():
            nonlocal most
            most = max(most, resident_kib(serve.pid))
            return not flood.running()

        self.assertTrue(eventually(look, seconds + 20, 0.05))
        self.assertEqual(flood.wait(5), 0, flood.out)
        sent = int(re.search(r"sent (\d+)", flood.out).group(1))
        self.assertEqual(talk.wait(seconds + 30), 0, talk.out)
        points = [(float(t), int(n)) for t, n in re.findall(r"(?m)^at (\S+) (\d+)$", talk.out)]
        moves, last = [points[0][0]], points[0][1]
        for t, n in points:
            if n > last:
                moves, last = moves + [t], n
        pause = max(b - a for a, b in zip(moves, moves[1:] + [points[-1][0]]))
        # The page for viewers follows within a second.
        eventually(lambda: self.drops(serve.pid, directory).get("tcp_syn_cookie", 0) > sent // 10, 5, 0.2)
        drops = self.drops(serve.pid, directory)
        print(f"seed {seed}: {sent} SYNs in {seconds} s ({sent / seconds / 1000:.0f} k/s); the client moved "
              f"{points[-1][1] / 1e6:.0f} MB, longest pause {pause:.2f} s; resident {before} KiB before, {most} at most; "
              f"{ {k: v for k, v in drops.items() if v} }", flush=True)
        self.assertGreater(sent / seconds, 20000)
        self.assertLess(pause, 5)  # it goes on; how fast is printed
        self.assertLess(most - before, 16 * 1024)
        self.assertGreater(drops.get("tcp_syn_cookie", 0), sent // 10)
        return serve, port

    def newcomers(self, serve, port, seconds):
        """New clients, while it goes on and after it."""
        mac = self.b.run(["cat", f"/sys/class/net/{self.b.dev}/address"]).out.strip()
        flood = self.a.start([binary("syn_flood"), self.a.dev, mac, self.b.ip, port, seconds, 1], cpu=0)
        arrived = 0
        while flood.running():
            with self.a.socket() as s:
                s.settimeout(20)
                s.connect((self.b.ip, port))
                s.sendall(b"d")
                while s.recv(65536):
                    arrived += 1
        self.assertGreater(arrived, 0)
        print(f"  new clients got in during the flood: {arrived} reads", flush=True)


class Smoke(Flooded):
    def test_short(self):
        self.newcomers(*self.flood(3), 2)


class Full(Flooded):
    def test_long(self):
        self.newcomers(*self.flood(30), 10)


if __name__ == "__main__":
    del Flooded
    case.main()
