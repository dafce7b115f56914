"""TCP options that change what goes over the wire or how much is held, against a kernel peer on either side: Fast Open,
TCP_DEFER_ACCEPT, TCP_INFO's counts, VMA_TCP_MEM_LIMIT. The Kernel class runs the same on the kernel alone.
"""

import itertools
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary

ENDS = {"client": (True, False), "server": (False, True), "both": (True, True)}
ports = itertools.count(7900)


class Options(case.NetCase):
    ends = ENDS

    def talk(self, ends, ways):
        """One server, a connection per way; the lines that both ends printed, in order."""
        client, server = ends
        port = next(ports)
        count = len(ways)
        for space in (self.a, self.b):
            space.sysctl("net.ipv4.tcp_fastopen", "3")
        serve = self.python(self.b, "tcp_options.py", "serve", self.b.ip, port, count, 16, preload=server, start=True)
        serve.expect("ready")
        done = self.python(self.a, "tcp_options.py", "client", self.b.ip, port, ",".join(ways), preload=client)
        self.assert_ok(done)
        self.assertEqual(serve.wait(10), 0, serve.out)
        pairs = []
        for out in (done.out, serve.out):
            pairs.append([dict(re.findall(r"(\w+)=(\w+)", line)) for line in out.splitlines() if "syn_data=" in line])
            self.assertEqual(len(pairs[-1]), count, out)
        return list(zip(*pairs)), done.out

    def test_fast_open(self):
        ways = ["send", "send", "connect", "nonblocking", "plain"]
        for name, ends in self.ends.items():
            with self.subTest(ends=name):
                seen, out = self.talk(ends, ways)
                # The first has no cookie yet; the last does not ask for it.
                expected = [False, True, True, True, False]
                for way, want, (ours, theirs) in zip(ways, expected, seen):
                    self.assertEqual(ours["syn_data"], str(want), (way, out))
                    self.assertEqual(theirs["syn_data"], str(want), (way, seen))

    def test_info(self):
        for name, ends in self.ends.items():
            with self.subTest(ends=name):
                ((client, server),), _ = self.talk(ends, ["plain"])
                size = len("0 plain ") * 100
                for end in (client, server):
                    self.assertEqual(int(end["sent"]), size)
                    self.assertEqual(int(end["received"]) // size, 1)
                    self.assertEqual(end["retrans"], "0")
                    self.assertEqual(end["reordering"], "3")
                    self.assertEqual(end["sack"], "True")
                    self.assertGreater(int(end["snd_wnd"]), 10000)
                    self.assertLess(int(end["min_rtt"]), 1000000)
                    self.assertGreater(int(end["pacing"]), 0)
                self.assertEqual(client["len"], server["len"])  # what this kernel has

    def test_deferred(self):
        for name, (client, server) in self.ends.items():
            with self.subTest(ends=name):
                port = next(ports)
                listener = self.python(self.b, "tcp_options.py", "deferred", self.b.ip, port, preload=server, start=True)
                listener.expect("ready")
                peer = self.python(self.a, "tcp_options.py", "silent", self.b.ip, port, preload=client, start=True,
                                   stdin=subprocess.PIPE)
                peer.expect("connected")
                self.assertIsNone(re.search("accepted", listener.out))
                peer.stdin.write(b"go\n")
                peer.stdin.flush()
                listener.expect("accepted with text")


class Kernel(Options):
    ends = {"kernel": (False, False)}


class Memory(case.NetCase):
    def test_limit(self):
        """Sixteen writers that nobody reads: what they hold stays below the limit, none is lost, all is delivered."""
        port, count, size, limit = next(ports), 16, 3 << 20, 4096
        sink = self.python(self.b, "tcp_options.py", "sink", self.b.ip, port, count, start=True, stdin=subprocess.PIPE)
        sink.expect("ready")
        flood = self.python(self.a, "tcp_options.py", "flood", self.b.ip, port, count, size, preload=True, start=True,
                            env={"VMA_TCP_MEM_LIMIT": str(limit)})
        flood.expect("stuck with", timeout=60)
        shown = subprocess.run([binary("vma_stats"), "--json", "-p", str(flood.pid)], capture_output=True, check=True)
        (process,) = json.loads(shown.stdout)["processes"]
        (ring,) = process["rings"]
        self.assertLessEqual(ring["tcp_memory"], limit * 1024 + count * 2048)
        self.assertGreater(ring["tcp_memory"], limit * 1024 // 2)
        self.assertGreaterEqual(ring["tcp_pressed"], 1)
        self.assertGreater(ring["tcp_refused"], 0)
        sink.stdin.write(b"go\n")
        sink.stdin.flush()
        sink.expect(f"read {count * size}", timeout=60)
        self.assertEqual(flood.wait(20), 0, flood.out)


if __name__ == "__main__":
    case.main()
