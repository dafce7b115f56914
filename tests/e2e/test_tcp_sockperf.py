"""Unmodified sockperf over TCP: every mode, size and way of waiting, preloaded at both ends and at each alone.

Smoke is the short tier's choice; Full the whole matrix; Kernel the same matrix on the kernel, which says whether the
expectations are the harness's or ours. A combination is a subtest, so one failure does not hide the others.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import library, preload_env

SIZES = (14, 1400, 1472, 8192, 63000)
WAITS = {
    "blocking": {},
    "nonblocked": {"nonblocked": True},
    "recvfrom": {"iomux": "recvfrom"},
    "select": {"iomux": "select", "sockets": 20},
    "poll": {"iomux": "poll", "sockets": 20},
    "epoll": {"iomux": "epoll", "sockets": 20},
}
ENDS = {"both": (True, True), "client": (True, False), "server": (False, True)}
SLACK = 120  # segments of handshakes and, after the hand-back at exit, of the ends of up to 20 connections


class Sockperf(case.NetCase):
    def one(self, mode, size, ends=(True, True), **options):
        client, server = ends
        env = preload_env()
        result = sockperf.run_pair(self.a, self.b, mode, protocol="tcp", size=size, client_env=env if client else None,
                                   server_env=env if server else None, **options)
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.sent, 0, result.text)
        if mode != "tp":
            self.assertEqual((result.duplicated, result.out_of_order), (0, 0), result.text)
            self.assertGreater(result.answers, 0, result.text)
        if mode == "pp":
            self.assertEqual(result.dropped, 0, result.text)
            self.assertLessEqual(result.sent - result.answers, 1, result.text)
        self.assertGreater(result.received, 0, result.text)
        self.assertLessEqual(result.received, result.sent, result.text)
        self.check_path(result, client, server)
        return result

    def check_path(self, result, client, server):
        """The kernel's counters must move exactly where an end is not preloaded."""
        for preloaded, seen, end in ((server, result.kernel_in, "server"), (client, result.client_kernel_in, "client")):
            if preloaded:
                # Of a sender that does not wait for answers, a queue is left at its exit; the kernel sees it through.
                queue = 0.05 * result.sent if result.mode == "tp" else 0
                if result.mode == "ul":
                    queue = 2 * (result.sent - result.answers)
                self.assertLess(seen, SLACK + queue, f"the {end}'s end was not offloaded: {result.text}")
        if result.mode == "pp" and not server:
            self.assertGreater(result.kernel_in, 0.9 * result.received)
        if result.mode == "pp" and not client:
            self.assertGreater(result.client_kernel_in, 0.9 * result.answers)


class Smoke(Sockperf):
    def test_loaded_by_the_program(self):
        """Not preloaded: sockperf opens the library and takes its functions out of it."""
        load = [f"--load-vma={library()}"]
        result = sockperf.run_pair(self.a, self.b, "pp", "tcp", client_args=load, server_args=load)
        self.assertEqual((result.client_rc, result.server_rc, result.dropped), (0, 0, 0), result.text)
        self.assertGreater(result.answers, 100, result.text)
        self.check_path(result, True, True)

    def test_both_ends(self):
        for mode, size, wait in (("pp", 14, "blocking"), ("pp", 1472, "nonblocked"), ("pp", 14, "epoll"),
                                 ("pp", 63000, "blocking"), ("tp", 64, "blocking"), ("ul", 1400, "poll")):
            with self.subTest(mode=mode, size=size, wait=wait):
                self.one(mode, size, **WAITS[wait])

    def test_each_end_alone(self):
        for end in ("client", "server"):
            with self.subTest(end=end):
                self.one("pp", 14, ENDS[end])

    def test_data_integrity(self):
        self.assertNotIn("data integrity test failed", self.one("pp", 1400, client_args=["--data-integrity"]).text)


class Matrix(Sockperf):
    ends = {"kernel": (False, False)}

    def each(self, mode, waits, sizes=SIZES):
        for size in sizes:
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
                    self.one("pp", 14, ends, iomux=iomux, sockets=20, threads=4)

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
