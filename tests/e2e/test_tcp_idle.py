"""Many idle connections in one preloaded server: memory, accept rate, and that each of them still works.

The clients are kernel sockets, processes with an address each. Memory is the server's resident set, Python and the shared
memory of the rings included. Where the machine's descriptor limit is lower than the number of connections, and this process
may not raise it, the server accepts as many as it may; the rest is established and waits in accept queues, and the sum for
all is worked out from what an accepted one costs.
"""

import itertools
import json
import os
import re
import resource
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually, preload_env

CLIENTS = 8
SPARE = 400  # descriptors that are no connections
ports = itertools.count(7400, 3)


def descriptors(wanted):
    """A limit that processes started from here can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, wanted)))
    except (PermissionError, ValueError):
        pass
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


class Many(case.NetCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for space in (cls.a, cls.b):
            space.sysctl("net.core.somaxconn", 65535)
            space.sysctl("net.ipv4.tcp_max_syn_backlog", 65535)
        cls.a.sysctl("net.ipv4.ip_local_port_range", "1025 65000")
        subnet = cls.a.ip.rsplit(".", 1)[0]
        cls.sources = [f"{subnet}.{101 + i}" for i in range(CLIENTS)]
        for source in cls.sources:
            subprocess.run(["ip", "-n", cls.a.name, "addr", "add", f"{source}/24", "dev", cls.a.dev], check=True)

    def idle(self, total):
        """The server's state with all connections, with `whole`: its resident set in KiB, had it accepted them all."""
        port = next(ports)
        limit = descriptors(total + SPARE)
        accepted = total if limit == total + SPARE else (limit - SPARE) // 4 * 3  # the top quarter is the library's
        accepted -= accepted % 4
        prefix = ["prlimit", f"--nofile={limit}:{limit}"]
        serve = self.python(self.b, "tcp_idle.py", "serve", self.b.ip, port, start=True, stdin=subprocess.PIPE, prefix=prefix,
                            env=preload_env(VMA_TRACELEVEL="warning"), cpu=1)
        serve.expect("ready", 20)
        before = self.b.counters("Tcp")["InSegs"]
        answers = {}

        def ask(process, text, pattern):
            answers[process] = number = answers.get(process, 0) + 1
            process.stdin.write(text)
            process.stdin.flush()
            self.assertTrue(eventually(lambda: len(re.findall(pattern, process.out)) >= number, 60), process.out[-2000:])
            return re.findall(pattern, process.out)[-1]

        def state():
            return json.loads(ask(serve, b"\n", r"(?m)^state (.*)$"))

        empty = state()
        clients = []

        def connect(n, source, to):
            clients.append(self.python(self.a, "tcp_idle.py", "connect", self.b.ip, to, source, n, start=True,
                                       stdin=subprocess.PIPE, prefix=prefix, cpu=0))

        for source in self.sources[:4]:
            connect(accepted // 4, source, port)
        for client in clients:
            client.expect(r"open \d+", 300)
        self.assertTrue(eventually(lambda: state()["open"] == accepted, 60, 0.5), state())
        full = state()
        each = (full["rss"] - empty["rss"]) * 1024 / accepted
        print(f"{accepted} connections accepted: resident {full['rss'] / 1024:.0f} MiB (anonymous "
              f"{full['anon'] / 1024:.0f}, shared {full['shared'] / 1024:.0f}), {each:.0f} bytes a connection; "
              f"{accepted / full['seconds']:.0f} accepted per second", flush=True)
        for client in clients:
            ask(client, b"500\n", r"(?m)^talked (.*)$")
        full["whole"] = full["rss"]
        if waiting := total - accepted:
            ways = itertools.product((port + 1, port + 2), self.sources[4:])
            while waiting:
                to, source = next(ways)
                part = min(waiting, accepted)
                connect(part, source, to)
                clients[-1].expect(r"open \d+", 300)
                waiting -= part
            full = state()
            print(f"  and {total - accepted} more that wait for accept(): resident {full['rss'] / 1024:.0f} MiB", flush=True)
            full["whole"] = empty["rss"] + each * total / 1024
            print(f"  {total} accepted ones by the same measure: {full['whole'] / 1024:.0f} MiB", flush=True)
        segments = self.b.counters("Tcp")["InSegs"] - before
        self.assertLess(segments, case.SLACK + total // 100)
        for client in clients:
            client.kill()  # the kernel closes its connections
        self.assertTrue(eventually(lambda: state()["open"] == 0, 120, 0.5), state())
        print(f"  closed: {state()}", flush=True)
        return full


class Smoke(Many):
    def test_thousands(self):
        full = self.idle(4000)
        self.assertLess(full["rss"], 80 * 1024)  # KiB


class Full(Many):
    def test_hundred_thousand(self):
        full = self.idle(100000)
        self.assertLess(full["rss"], 1 << 20)  # KiB
        self.assertLess(full["whole"], 1 << 20)


if __name__ == "__main__":
    del Many
    case.main()
