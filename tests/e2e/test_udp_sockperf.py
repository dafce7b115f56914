"""Unmodified sockperf over UDP: every mode, size and way of waiting, preloaded at both ends and at each alone.

Smoke is the short tier's choice; Full the whole matrix; Kernel the same matrix on the kernel, which says whether the
expectations are the harness's or ours. A combination is a subtest, so one failure does not hide the others.
"""

import concurrent.futures
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import binary, library, preload_env

MTU_PAYLOAD = 1472  # above it datagrams are fragments, which go through the kernel by the rule for fragments
SIZES = (14, 1400, MTU_PAYLOAD, 8192, 63000)
WAITS = {
    "blocking": {},
    "nonblocked": {"nonblocked": True},
    "recvfrom": {"iomux": "recvfrom"},
    "select": {"iomux": "select", "sockets": 100},
    "poll": {"iomux": "poll", "sockets": 100},
    "epoll": {"iomux": "epoll", "sockets": 100},
}
ENDS = {"both": (True, True), "client": (True, False), "server": (False, True)}


class Sockperf(case.NetCase):
    def one(self, mode, size, ends=(True, True), **options):
        client, server = ends
        env = preload_env() if client or server else None
        result = sockperf.run_pair(self.a, self.b, mode, size=size, client_env=env if client else None,
                                   server_env=env if server else None, **options)
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.sent, 0, result.text)
        if mode != "tp":
            self.assertEqual((result.duplicated, result.out_of_order), (0, 0), result.text)
            self.assertGreater(result.answers, 0, result.text)
        if mode == "pp":
            self.assertEqual(result.dropped, 0, result.text)
            self.assertLessEqual(result.sent - result.answers, 1, result.text)
        if not options.get("daemonize"):
            self.assertGreater(result.received, 0, result.text)
            self.assertLessEqual(result.received, result.sent, result.text)
        if mode == "pp" and not options.get("daemonize"):
            # The last one may be on its way when the client's time is over.
            self.assertLessEqual(result.sent - result.received, 1, result.text)
        self.check_path(result, size, client, server, options.get("daemonize"))
        return result

    def check_path(self, result, size, client, server, daemonize):
        """The kernel's counters must move exactly where an end is not preloaded."""
        if size > MTU_PAYLOAD:
            return
        received = result.sent if daemonize else result.received
        if server:
            self.assertLess(result.kernel_in, 0.05 * received + case.SLACK, "the server's end was not offloaded")
        else:
            self.assertGreaterEqual(result.kernel_in, 0.95 * received)
        if result.answers and client:
            self.assertLess(result.client_kernel_in, 0.05 * result.answers + case.SLACK, "the client's was not")


class Smoke(Sockperf):
    def test_loaded_by_the_program(self):
        """Not preloaded: sockperf opens the library and takes its functions out of it."""
        load = [f"--load-vma={library()}"]
        result = sockperf.run_pair(self.a, self.b, "pp", client_args=load, server_args=load)
        self.assertEqual((result.client_rc, result.server_rc, result.dropped), (0, 0, 0), result.text)
        self.assertGreater(result.answers, 100, result.text)
        self.check_path(result, 14, True, True, False)

    def test_both_ends(self):
        for mode, size, wait in (("pp", 14, "blocking"), ("pp", 1472, "nonblocked"), ("pp", 14, "epoll"),
                                 ("pp", 8192, "blocking"), ("tp", 64, "blocking"), ("ul", 1400, "poll")):
            with self.subTest(mode=mode, size=size, wait=wait):
                self.one(mode, size, **WAITS[wait])

    def test_each_end_alone(self):
        for end in ("client", "server"):
            with self.subTest(end=end):
                self.one("pp", 14, ENDS[end])

    def test_data_integrity(self):
        self.assertNotIn("data integrity test failed", self.one("pp", 1400, client_args=["--data-integrity"]).text)


class ExtraApi(case.NetCase):
    """What sockperf asks of VMA, over both protocols. Debian's is built without VMA's header: --vmazcopyread and --vmarxfiltercb only
    say so, and its source is not on the mirrors any more; extra_receive.c and extra_callback.c make those calls."""

    def run_looked_at(self, *args, **options):
        """Both ends preloaded; the Result and the counters of the client's socket, looked at all the time."""
        seen = {}
        with tempfile.TemporaryDirectory(prefix="vma_sockperf.") as folder, concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(sockperf.run_pair, self.a, self.b, *args, client_env=preload_env(VMA_STATS_SHMEM_DIR=folder),
                              server_env=preload_env(), **options)
            while not run.done():
                look = self.a.run([binary("vma_stats"), "-k", folder, "--json"], timeout=20)
                for process in json.loads(look.out)["processes"] if look.rc == 0 else []:
                    for s in process["sockets"]:
                        if s["path"] == "offloaded" and s["counters"]["tx_packets"] >= seen.get("tx_packets", 0):
                            seen = s["counters"]
            result = run.result()
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertTrue(seen, result.text)
        # Until the neighbour is known they go by the kernel.
        self.assertLess(seen["tx_os_packets"], 0.05 * seen["tx_packets"] + case.SLACK)
        return result, seen

    def test_dummy_send(self):
        for protocol in ("udp", "tcp"):
            with self.subTest(protocol):
                result, seen = self.run_looked_at("ul", protocol, mps=200, client_args=["--dummy-send", "20000"], seconds=2)
                self.assertGreater(seen["tx_dummy"], 10 * seen["tx_packets"])
                self.assertLessEqual(result.received, result.sent, "dummies must not arrive")
                self.assertGreater(result.answers, 0)

    def test_rate_limit(self):
        """Bytes a second, as the kernel takes them."""
        rate, size = 1_000_000, 1000
        for protocol in ("udp", "tcp"):
            with self.subTest(protocol):
                free, _ = self.run_looked_at("tp", protocol, size, seconds=3)
                result, _ = self.run_looked_at("tp", protocol, size, client_args=[f"--rate-limit={rate}"], seconds=3)
                # What a full send buffer and the ring hold goes on arriving after the client's time.
                most = (rate * (result.seconds + 1) + 4_000_000) / size
                self.assertLess(result.received, most)
                self.assertGreater(free.received / free.seconds, 2 * most / result.seconds)


class Matrix(Sockperf):
    ends = {"kernel": (False, False)}

    def each(self, mode, waits):
        for size in SIZES:
            for wait in waits:
                for name, ends in self.ends.items():
                    with self.subTest(mode=mode, size=size, wait=wait, ends=name):
                        self.one(mode, size, ends, **WAITS[wait])

    def test_ping_pong(self):
        self.each("pp", WAITS)

    def test_under_load(self):
        self.each("ul", ("blocking", "epoll"))

    def test_throughput(self):
        self.each("tp", ("blocking", "nonblocked", "epoll"))

    def test_threads(self):
        for iomux in ("select", "poll", "epoll"):
            for name, ends in self.ends.items():
                with self.subTest(iomux=iomux, ends=name):
                    self.one("pp", 14, ends, iomux=iomux, sockets=100, threads=4)

    def test_daemon(self):
        for name, ends in self.ends.items():
            with self.subTest(ends=name):
                self.one("pp", 14, ends, daemonize=True)

    def test_data_integrity(self):
        for size in SIZES:
            for name, ends in self.ends.items():
                with self.subTest(size=size, ends=name):
                    text = self.one("pp", size, ends, client_args=["--data-integrity"]).text
                    self.assertNotIn("data integrity test failed", text)


class Kernel(Matrix):
    pass


class Full(Matrix):
    ends = ENDS


if __name__ == "__main__":
    del Sockperf, Matrix  # bases, not tests
    case.main()
