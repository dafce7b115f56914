"""A flood of IP fragments at a preloaded program: its memory stays, and its sockets go on working."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import preload_env


class Flood(case.NetCase):
    SEED = 8

    def resident(self, process):
        with open(f"/proc/{process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))

    def test_other_sockets_work_and_memory_is_flat(self):
        server = self.b.start(["sockperf", "sr", "-i", self.b.ip, "-p", "11111"], env=preload_env())
        self.b.wait_bound("udp", 11111, process=server)
        warm = self.a.run(["sockperf", "pp", "-i", self.b.ip, "-p", "11111", "-t", "1"], timeout=30)
        self.assert_ok(warm)
        before = self.resident(server)
        flood = self.python(self.a, "fragment_flood.py", self.a.ip, self.b.ip, 11111, 4, self.SEED, start=True)
        kernel_before = self.b.counters("Udp")["InDatagrams"]
        done = self.a.run(["sockperf", "pp", "-i", self.b.ip, "-p", "11111", "-t", "2"], timeout=30)
        self.assert_ok(done)
        seen = self.b.counters("Udp")["InDatagrams"] - kernel_before
        self.assertEqual(flood.wait(30), 0, flood.out)
        self.assertGreater(int(flood.out.split()[-1]), 1000)
        result = sockperf.parse("pp", done.rc, done.out, 0, "")
        self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), done.out)
        self.assertGreater(result.answers, 1000, done.out)
        self.assertLess(seen, 0.05 * result.answers + case.SLACK, "the server's datagrams came by the kernel")
        self.assertLess(self.resident(server) - before, 4096, f"kB of memory grew, seed {self.SEED}")
        self.assertGreater(self.b.counters("Ip")["ReasmReqds"], 1000)


if __name__ == "__main__":
    case.main()
