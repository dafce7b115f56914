"""A flood of IP fragments at a preloaded program: its memory stays, and its sockets go on working, whoever puts fragments together."""

import contextlib
import json
import os
import re
import socket
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary

PORT = 11111


class Flood(case.NetCase):
    SEED = 8

    def resident(self):
        with open(f"/proc/{self.server.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))

    def ping_pong(self, client, questions):
        """By the ring; one in a hundred may be asked again, as the flood fills queues of the kernel's, too."""
        with self.past_the_kernel(self.b, questions):
            for i in range(questions):
                question = b"question %d" % i
                for attempt in range(3):
                    client.sendto(question, (self.b.ip, PORT))
                    with contextlib.suppress(TimeoutError):
                        while client.recvfrom(100)[0] != question:
                            pass  # the answer to one that was asked again
                        break
                    self.lost += 1
                else:
                    self.fail(f"no answer to {question}, the {i}th")

    def drops(self):
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "--json", "-p", str(self.server.pid)], timeout=20)
        self.assert_ok(done)
        (ring,) = json.loads(done.out)["processes"][0]["rings"]
        return ring["drops"]

    def flooded(self, **variables):
        """Ping-pong before, during and after a flood, which takes no more memory than the 4 MiB that may wait to be put together."""
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="vma-stats-"))
        self.server = self.python(self.b, "udp_echo.py", self.b.ip, PORT, "--via", "recvfrom", start=True, preload=True,
                                  env={"VMA_STATS_SHMEM_DIR": self.folder, **variables})
        self.server.expect("ready")
        client = self.enterContext(self.a.socket(socket.AF_INET, socket.SOCK_DGRAM))
        client.settimeout(1)
        self.lost = 0
        self.ping_pong(client, 500)
        before, drops = self.resident(), self.drops()
        reassembled = self.b.counters("Ip")["ReasmReqds"]
        flood = self.python(self.a, "fragment_flood.py", self.a.ip, self.b.ip, PORT, 2, self.SEED, start=True)
        flood.expect("flooding")
        asked = 1000
        while flood.running():
            self.ping_pong(client, 100)
            asked += 100
        self.assertEqual(flood.wait(30), 0, flood.out)
        sent = int(flood.out.split()[-1])
        self.ping_pong(client, 500)
        self.assertGreater(sent, 5000)
        self.assertGreater(self.b.counters("Ip")["ReasmReqds"] - reassembled, 1000)
        self.assertLessEqual(self.lost, asked // 100)
        self.assertLess(self.resident() - before, 4096 + 1024, f"kB of memory for {sent} fragments, seed {self.SEED}")
        return {k: n - drops.get(k, 0) for k, n in self.drops().items() if n != drops.get(k, 0)}

    def test_by_the_kernel(self):
        self.assertEqual(self.flooded(), {})

    def test_by_the_ring(self):
        """More datagrams are given up for want of memory than may wait, and others for fragments that overlap."""
        drops = self.flooded(VMA_UDP_FRAGS="ring")
        self.assertGreater(drops["reassembly_memory"], 256)
        self.assertGreater(drops["reassembly_overlap"], 0)
        self.assertNotIn("ring_full", drops)


if __name__ == "__main__":
    case.main()
