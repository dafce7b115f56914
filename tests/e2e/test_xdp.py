"""The xdp ring (VMA_RING_KIND=xdp) between two namespaces: sockperf both ways over it, what vma_stats says of it, and what is said
and done where it cannot be had."""

import json
import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import binary, eventually, preload_env


class Xdp(case.NetCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.introduce(self.a, self.b)
        self.introduce(self.b, self.a)

    def env(self, **variables):
        return preload_env(VMA_RING_KIND="xdp", VMA_STATS_SHMEM_DIR=self.folder, **variables)

    def rings(self):
        """Of every preloaded process, the kinds of its rings."""
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "--json"])
        self.assert_ok(done)
        return [[ring["kind"] for ring in process["rings"]] for process in json.loads(done.out)["processes"]]

    def pair(self, mode, protocol="udp", **options):
        result = sockperf.run_pair(self.a, self.b, mode, protocol, client_env=self.env(), server_env=self.env(), **options)
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.sent, 100, result.text)
        self.assertLess(result.kernel_in + result.client_kernel_in, case.SLACK, "the kernel took part")
        if mode == "pp":
            self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
        return result

    def server(self, *kinds, port=sockperf.PORT):
        """A server on the port; the preloaded processes have rings of these kinds then."""
        process = self.b.start(["sockperf", "server", "-i", self.b.ip, "-p", str(port)], env=self.env())
        self.b.wait_bound("udp", port, process=process)
        expected = [[kind] for kind in kinds]
        self.assertTrue(eventually(lambda: sorted(self.rings()) == expected, 10), f"{self.rings()}\n{process.out}")
        return process

    def test_udp(self):
        self.pair("pp")
        self.pair("pp", size=1472, nonblocked=True)
        self.assertGreater(self.pair("tp", size=64).received, 100)

    def test_datagrams_in_fragments(self):
        """The kernel puts them together, as with a packet ring."""
        result = sockperf.run_pair(self.a, self.b, "pp", "udp", client_env=self.env(), server_env=self.env(), size=4000)
        self.assertEqual((result.client_rc, result.server_rc, result.dropped), (0, 0, 0), result.text)
        self.assertGreater(result.sent, 100, result.text)

    def test_tcp(self):
        self.pair("pp", "tcp")
        result = self.pair("tp", "tcp", size=1400)
        self.assertEqual(result.received, result.sent, result.text)

    def test_a_kernel_peer_with_its_offloads(self):
        """Its super-frames and unfinished checksums."""
        for mode in ("pp", "tp"):
            result = sockperf.run_pair(self.a, self.b, mode, "tcp", client_env={}, server_env=self.env(), size=9000)
            self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
            self.assertGreater(result.sent, 100, result.text)
            self.assertLess(result.kernel_in, case.SLACK, "the kernel took part")

    def test_seen_from_outside(self):
        self.server("xdp")
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain"])
        self.assertRegex(done.out, rf"{re.escape(self.b.ip)}:{sockperf.PORT}.*offloaded.*xdp")
        link = self.b.run(["ip", "link", "show", "dev", self.b.dev]).out
        self.assertIn("xdpgeneric", link)

    def test_a_second_process_gets_a_packet_ring(self):
        self.server("xdp")
        second = self.server("packet", "xdp", port=sockperf.PORT + 1)
        second.expect("a packet ring, for no xdp ring can be had: queue 0")
        for port in (sockperf.PORT, sockperf.PORT + 1):
            done = self.a.run(["sockperf", "ping-pong", "-i", self.b.ip, "-p", str(port), "-t", "1"])
            self.assert_ok(done)

    def test_another_program_on_the_interface_is_named(self):
        source = os.path.join(os.path.dirname(binary("vma_stats")), "../bpf/xdp_pass.o")
        self.assert_ok(self.b.run(["ip", "link", "set", "dev", self.b.dev, "xdpgeneric", "obj", source, "sec", "xdp"]))
        self.addCleanup(self.b.run, ["ip", "link", "set", "dev", self.b.dev, "xdpgeneric", "off"])
        server = self.b.start(["sockperf", "server", "-i", self.b.ip], env=self.env())
        server.expect("another XDP program is attached")
        self.assertEqual(self.rings(), [[]])
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain"])
        self.assertIn("ring_failed", done.out)
        done = self.a.run(["sockperf", "ping-pong", "-i", self.b.ip, "-t", "1"])
        self.assert_ok(done)


if __name__ == "__main__":
    case.main()
