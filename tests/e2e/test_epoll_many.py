"""epoll_wait() on ten thousand descriptors costs what it costs on ten when as many of them are ready (epoll(7)), in
instructions, which callgrind counts; not in time, which the machine decides.
"""

import os
import re
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import budgets
import case
from netns import binary, preload_env

WAITS = 2000


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


class Cost(case.NetCase):
    def instructions(self, sockets):
        """Of one epoll_wait() on a set of that many sockets, one of them ready."""
        before = self.b.counters("Udp")["InDatagrams"]
        with tempfile.TemporaryDirectory() as folder:
            prefix = ["prlimit", "--nofile=20000:20000", "valgrind", "--tool=callgrind", "--trace-children=yes",
                      "--collect-atstart=no", "--toggle-collect=waits_for_one", f"--callgrind-out-file={folder}/%p"]
            program = self.b.start([binary("epoll_many"), self.b.ip, str(sockets), str(WAITS)], prefix=prefix,
                                   env=preload_env(VMA_TRACELEVEL="warning"))
            port = int(program.expect(r"port (\d+)", 60).group(1))
            with self.a.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as s:
                s.sendto(b"one", (self.b.ip, port))
            told = int(program.expect(r"told (\d+)", 60).group(1))
            self.assertEqual((program.wait(20), told), (0, WAITS), program.out)
            total = re.search(r"(?m)^totals: (\d+)", read(os.path.join(folder, str(program.pid))))
        self.assertEqual(self.b.counters("Udp")["InDatagrams"], before, "the datagram came by the kernel")
        return int(total.group(1)) / WAITS

    def test_members_that_are_not_ready_cost_nothing(self):
        few, many = self.instructions(10), self.instructions(10_000)
        print(f"instructions of one epoll_wait(): {few:.0f} with 10 sockets, {many:.0f} with 10000", file=sys.stderr)
        self.assertLess(many, few * 1.1)
        budgets.check(self, {"epoll_wait": few})


if __name__ == "__main__":
    unittest.main()
