"""Debian's verbs programs on the software HCA: two processes in two network namespaces, joined by its wire alone."""

import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import binary, library, preload_env

LIBRARIES = os.path.join(os.path.dirname(library()), "softhca")
DEVICES = "name=left mac=02:00:00:00:00:0a; name=right mac=02:00:00:00:00:0b"
NUMBER = r"[0-9.]+"


class SoftHca(case.NetCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        wire = tempfile.mkdtemp(prefix="softhca-", dir="/dev/shm")
        cls.addClassCleanup(shutil.rmtree, wire)
        cls.env = {"LD_LIBRARY_PATH": LIBRARIES, "SOFTHCA_WIRE": wire, "SOFTHCA": DEVICES}

    def pair(self, program, *options, server=(), client=(), port=None):
        """Runs both sides to their end and returns the client's output. port: where the server listens for the client's
        exchange of addresses, over the kernel's TCP; None: there is no exchange."""
        first = self.a.start(["stdbuf", "-oL", program, *options, *server], env=self.env)
        if port:
            self.a.wait_bound("tcp", port, process=first)
            client = (*client, self.a.ip)
        else:
            first.expect(r"#bytes")  # printed when everything is ready to receive
        second = self.b.run([program, *options, *client], env=self.env)
        self.assertEqual(second.rc, 0, second.out)
        self.assertEqual(first.wait(), 0, first.out)
        return second.out


class Verbs(SoftHca):
    def test_devinfo_shows_the_described_devices(self):
        done = self.a.run(["ibv_devinfo", "-v"], env=self.env)
        self.assert_ok(done)
        self.assertEqual(re.findall(r"hca_id:\s+(\S+)", done.out), ["left", "right"])
        for line in ("state:\\s+PORT_ACTIVE", "link_layer:\\s+Ethernet", "max_tso:\\s+65536", "GID\\[  1\\]:.*RoCE v2"):
            self.assertRegex(done.out, line)

    def test_devinfo_without_a_device(self):
        done = self.a.run(["ibv_devinfo"], env={**self.env, "SOFTHCA": "nonsense"})
        self.assertIn('SOFTHCA: "nonsense" is not a key=value of a device', done.out)
        self.assertIn("No IB devices found", done.out)

    def pingpong(self, kind, *options):
        out = self.pair(f"ibv_{kind}_pingpong", "-d", "left", "-g", "0", "-n", "200", *options, port=18515)
        self.assertRegex(out, rf"200 iters in {NUMBER} seconds")

    def test_rc(self):
        self.pingpong("rc", "-c")

    def test_rc_by_events(self):
        self.pingpong("rc", "-c", "-e")

    def test_rc_extended_api(self):
        self.pingpong("rc", "-c", "-N", "-t")

    def test_rc_device_memory(self):
        self.pingpong("rc", "-c", "-j")

    def test_uc(self):
        self.pingpong("uc", "-c")

    def test_ud(self):
        self.pingpong("ud", "-c")

    def test_srq(self):
        self.pingpong("srq", "-c")


class Raw(SoftHca):
    def raw(self, program, *options):
        left, right = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
        return self.pair(program, "-n", "500", "-s", "200", *options,
                         server=["-d", "right", "--server", "-B", right, "-E", left],
                         client=["-d", "left", "--client", "-B", left, "-E", right])

    def test_latency(self):
        self.assertRegex(self.raw("raw_ethernet_lat"), rf"(?m)^ 200 +500 +{NUMBER}")

    def test_bandwidth_of_one_flow(self):
        out = self.raw("raw_ethernet_bw", "-j", "10.9.0.1", "-J", "10.9.0.2", "-K", "5000", "-k", "5001")
        self.assertRegex(out, rf"(?m)^ 200 +500 +{NUMBER}")


class Perftest(SoftHca):
    def perftest(self, program, *options):
        out = self.pair(program, "-d", "left", "-x", "1", "-F", "-n", "200", *options, port=18515)
        self.assertRegex(out, rf"(?m)^ \d+ +200 +{NUMBER}")

    def test_write(self):
        self.perftest("ib_write_lat")
        self.perftest("ib_write_bw")

    def test_read(self):
        self.perftest("ib_read_lat")
        self.perftest("ib_read_bw")

    def test_send(self):
        self.perftest("ib_send_lat")
        self.perftest("ib_send_bw")
        self.perftest("ib_send_lat", "-c", "UD")

    def test_atomics(self):
        self.perftest("ib_atomic_lat", "-A", "FETCH_AND_ADD")
        self.perftest("ib_atomic_lat", "-A", "CMP_AND_SWAP")


class Mlx5(SoftHca):
    """Devices of kind mlx5: their queues as mlx5dv.h has them, and verbs as of any other."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.env = {**cls.env, "SOFTHCA": ";".join(device + " kind=mlx5" for device in DEVICES.split(";")) + "; name=plain"}

    def test_queues_by_the_libraries(self):
        for device, said in (("left", "completed opcode 0 counter 0"), ("plain", "not mlx5")):
            done = self.a.run([binary("mlx5_queues"), device], env=self.env)
            self.assertEqual((done.rc, done.out.strip()), (0, said))

    def test_perftest(self):
        out = self.pair("ib_write_lat", "-d", "left", "-x", "1", "-F", "-n", "200", port=18515)
        self.assertRegex(out, rf"(?m)^ \d+ +200 +{NUMBER}")

    def test_raw_ethernet(self):
        left, right = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
        out = self.pair("raw_ethernet_lat", "-n", "500", "-s", "200", server=["-d", "right", "--server", "-B", right, "-E", left],
                        client=["-d", "left", "--client", "-B", left, "-E", right])
        self.assertRegex(out, rf"(?m)^ 200 +500 +{NUMBER}")


class Ring(SoftHca):
    """libvma's verbs ring between two namespaces; their veth carries only what the kernel sends for itself, such as ARP."""

    kind, device = "verbs", ""

    def ends(self, **variables):
        """The environment of each end."""
        return {space: preload_env(**{**self.env, "SOFTHCA": f"name=hca netdev={space.dev} {self.device}",
                                      "VMA_RING_KIND": self.kind, **variables})
                for space in (self.a, self.b)}

    def one(self, mode, protocol="udp", **options):
        env = self.ends()
        before = self.frames()
        result = sockperf.run_pair(self.a, self.b, mode, protocol, client_env=env[self.a], server_env=env[self.b],
                                   **options)
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.sent, 100, result.text)
        self.assertLess(result.kernel_in + result.client_kernel_in, case.SLACK, "the kernel took part")
        self.assertLess(self.frames() - before, 200, "the messages went over the veth")
        if mode == "pp":
            self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
            self.assertLessEqual(result.sent - result.answers, 1, result.text)
        return result

    def frames(self):
        line = re.search(rf"{self.b.dev}: *\d+ +(\d+)", self.b.read("/proc/thread-self/net/dev"))
        return int(line.group(1))

    def test_udp_ping_pong(self):
        self.one("pp")
        self.one("pp", size=1472, nonblocked=True)

    def test_seen_from_outside(self):
        """The ring is in the statistics page, with as many frames as sockperf has messages, and its frames can be captured."""
        folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        env = self.ends(VMA_STATS_SHMEM_DIR=folder)
        where = ["-i", self.b.ip, "-p", str(sockperf.PORT)]
        server = self.b.start(["sockperf", "server", *where], env=env[self.b])
        self.b.wait_bound("udp", sockperf.PORT, process=server)
        tool = [binary("vma_stats"), "-k", folder]
        pid = re.search(r"(\d+)/", self.b.run([*tool, "-v", "5"]).out.splitlines()[-1]).group(1)
        capture = self.b.start([binary("vma_capture"), "-k", folder, "-p", pid, "-w", os.path.join(folder, "capture"), "-c", "50"])
        capture.expect("capturing from")
        done = self.a.run(["sockperf", "ping-pong", *where, "-t", "1", "-m", "200"], env=env[self.a])
        result = sockperf.parse("pp", done.rc, done.out, 0, "")
        self.assertEqual(done.rc, 0, done.out)
        (process,) = json.loads(self.b.run([*tool, "--json", "-p", pid]).out)["processes"]
        (ring,) = process["rings"]
        (seen,) = [s for s in process["sockets"] if s["local"] == f"{self.b.ip}:{sockperf.PORT}"]
        self.assertEqual((ring["kind"], ring["interface"], ring["open"], ring["drops"]), (self.kind, self.b.dev, True, {}))
        self.assertEqual((seen["path"], seen["rings"]), ("offloaded", [0]))
        counters = seen["counters"]
        self.assertEqual(counters["rx_packets"] + counters["rx_os_packets"], result.sent, done.out)
        self.assertEqual((ring["rx_frames"], ring["tx_frames"]), (counters["rx_packets"], counters["tx_packets"]))
        self.assertEqual(ring["rx_bytes"], counters["rx_packets"] * (200 + 42))
        self.assertLess(counters["rx_os_packets"], case.SLACK)
        self.assertEqual(capture.wait(10), 0, capture.out)
        shown = self.b.run(["tshark", "-r", os.path.join(folder, "capture"), "-Y", "udp && !_ws.malformed && !_ws.short", "-T", "fields",
                            "-e", "frame.interface_name", "-e", "udp.length"])
        self.assertEqual(re.findall(r"(?m)^(\S+)\t(\d+)$", shown.out), [(self.b.dev, "208")] * 50, shown.out)

    def test_udp_throughput(self):
        self.assertGreater(self.one("tp", size=64).received, 100)

    def test_tcp_ping_pong(self):
        self.one("pp", "tcp")

    def test_tcp_throughput(self):
        result = self.one("tp", "tcp", size=1400)
        self.assertEqual(result.received, result.sent, result.text)


class RingMlx5(Ring):
    """The mlx5 ring on devices that check what it writes to their queues."""

    kind, device = "mlx5", "kind=mlx5"

    def test_chosen_by_the_device(self):
        """Without a setting: mlx5 where the device is one, else verbs; and verbs, if told so."""
        for device, asked, got in (("kind=mlx5", "auto", "mlx5"), ("kind=plain", "auto", "verbs"), ("kind=mlx5", "verbs", "verbs")):
            with self.subTest(device=device, asked=asked):
                folder = tempfile.mkdtemp(prefix="vma-stats-")
                self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
                env = self.ends(VMA_STATS_SHMEM_DIR=folder, VMA_RING_KIND=asked, SOFTHCA=f"name=hca netdev={self.b.dev} {device}")[self.b]
                server = self.b.start(["sockperf", "server", "-i", self.b.ip, "-p", str(sockperf.PORT)], env=env)
                self.b.wait_bound("udp", sockperf.PORT, process=server)
                shown = json.loads(self.b.run([binary("vma_stats"), "-k", folder, "--json"]).out)
                self.assertEqual([ring["kind"] for process in shown["processes"] for ring in process["rings"]], [got])
                server.kill()
                server.wait()

    def test_bytes_of_every_request(self):
        """Whole frames inside of requests or none, with the doorbell or not: the same messages."""
        for variables in ({"VMA_BF": "0"}, {"VMA_TX_MAX_INLINE": "0"}, {"VMA_TX_MAX_INLINE": "884"}):
            with self.subTest(variables):
                env = self.ends(**variables)
                result = sockperf.run_pair(self.a, self.b, "pp", "udp", client_env=env[self.a], server_env=env[self.b], size=400)
                self.assertEqual((result.client_rc, result.server_rc, result.dropped), (0, 0, 0), result.text)
                self.assertGreater(result.answers, 50, result.text)


class OnCard(case.OnVerbs, case.NetCase):
    def preloaded(self, space, **variables):
        return preload_env(**{**self.by_verbs(space), **variables})


class Card(OnCard):
    """A card that the kernel and the verbs ring share: what no rule of the ring takes is the kernel's, at both ends."""

    def ping_pong(self, protocol, preloaded):
        env = {letter: self.preloaded(self.net[letter]) if letter in preloaded else {} for letter in "ab"}
        result = sockperf.run_pair(self.a, self.b, "pp", protocol, client_env=env["a"], server_env=env["b"])
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.answers, 100, result.text)
        self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
        for letter, seen in (("a", result.client_kernel_in), ("b", result.kernel_in)):
            if letter in preloaded:
                self.assertLess(seen, case.SLACK, f"the kernel of {letter} took part")
            else:
                self.assertGreater(seen, 100, f"the kernel of {letter} took no part")

    def test_the_kernel_alone(self):
        self.ping_pong("udp", "")
        self.ping_pong("tcp", "")

    def test_the_ring_with_the_kernel(self):
        for protocol in ("udp", "tcp"):
            for preloaded in ("a", "b", "ab"):
                with self.subTest(protocol=protocol, preloaded=preloaded):
                    self.ping_pong(protocol, preloaded)

    def test_rules_of_a_killed_process_are_gone(self):
        """Its listener's frames went to the ring; afterwards the kernel refuses, as it must for a port without a listener."""
        server = self.b.start(["sockperf", "sr", "--tcp", "-i", self.b.ip], env=self.preloaded(self.b))
        self.b.wait_served(sockperf.PORT, server)
        server.kill()
        with self.a.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(10)
            with self.assertRaises(ConnectionRefusedError):
                client.connect((self.b.ip, sockperf.PORT))


class CardMlx5(case.OnMlx5, Card):
    pass


class Stamps(OnCard):
    """The card's stamps of received datagrams. Its clock is CLOCK_MONOTONIC in nanoseconds."""

    COUNT, PORT = 20, 12345
    TOLERANCE = 100_000_000  # of readings of two clocks on a busy machine, in ns

    def stamped(self, **variables):
        """For each datagram (monotonic before, realtime before, the host's stamp, the device's, realtime after, monotonic after)."""
        program = self.python(self.b, "hw_stamps.py", self.b.ip, self.PORT, self.COUNT, start=True,
                              env=self.preloaded(self.b, **variables))
        program.expect("ready")
        sent = []
        with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(10)
            for _ in range(self.COUNT):
                before = time.monotonic_ns(), time.time_ns()
                client.sendto(b"datagram", (self.b.ip, self.PORT))
                client.recv(100)
                sent.append((before, (time.time_ns(), time.monotonic_ns())))
        self.assertEqual(program.wait(10), 0, program.out)
        self.said = program.out
        told = [tuple(map(int, stamps)) for stamps in re.findall(r"(?m)^stamp (\d+) (\d+)$", program.out)]
        self.assertEqual(len(told), self.COUNT, program.out)
        return [(*before, *stamps, *after) for (before, after), stamps in zip(sent, told)]

    def test_what_each_setting_gives(self):
        """VMA_HW_TS_CONVERSION: nothing, the device's own time, or that of the host; each later than the one before."""
        for setting, clock in (("0", None), ("1", "monotonic"), ("2", "realtime"), ("3", "realtime"), ("4", "realtime")):
            with self.subTest(setting=setting):
                last = 0
                for monotonic, realtime, host, device, realtime_end, monotonic_end in self.stamped(VMA_HW_TS_CONVERSION=setting):
                    self.assertTrue(realtime <= host <= realtime_end, self.said)
                    if clock is None:
                        self.assertEqual(device, 0, self.said)
                        continue
                    begin, end = (monotonic, monotonic_end) if clock == "monotonic" else (realtime, realtime_end)
                    self.assertTrue(begin - self.TOLERANCE <= device <= end + self.TOLERANCE, f"{begin} {end}\n{self.said}")
                    self.assertGreater(device, last, self.said)
                    last = device
                self.assertEqual("has no PTP clock" in self.said, setting == "4", self.said)

    def test_a_device_without_a_clock(self):
        described = self.net.env("b")["SOFTHCA"] + " timestamps=0"
        for *_, device, _, _ in self.stamped(SOFTHCA=described):
            self.assertEqual(device, 0, self.said)


class StampsMlx5(case.OnMlx5, Stamps):
    pass


if __name__ == "__main__":
    unittest.main()
