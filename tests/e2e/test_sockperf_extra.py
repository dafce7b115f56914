"""sockperf built with mellanox/vma_extra.h: what it asks of the extra API, over both protocols, and our counters of each way.

Debian's sockperf is built without that header, so this is in no tier: VMA_TEST_SOCKPERF_EXTRA names one that is (docs/TESTING.md says
how ours was made), and without it every test fails.
"""

import concurrent.futures
import itertools
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import binary, library, preload_env

PROTOCOLS = ("udp", "tcp")
MODES = ("pp", "ul", "tp")
WAITS = {"blocking": {}, "nonblocked": {"nonblocked": True}, "epoll": {"iomux": "epoll", "sockets": 4}}
ZERO_COPY = ["--vmazcopyread"]
FILTER = ["--vmarxfiltercb"]


class Extra(case.NetCase):
    @classmethod
    def setUpClass(cls):
        cls.program = os.environ.get("VMA_TEST_SOCKPERF_EXTRA")
        if not cls.program or not os.access(cls.program, os.X_OK):
            raise AssertionError("VMA_TEST_SOCKPERF_EXTRA is to name a sockperf that is built with mellanox/vma_extra.h (docs/TESTING.md)")
        super().setUpClass()

    def look(self, space, folder, seen):
        """Sums over the offloaded sockets of the processes whose pages are in `folder`; each counter's highest sum goes into `seen`."""
        done = space.run([binary("vma_stats"), "-k", folder, "--json"], timeout=20)
        sums = {}
        # What vma_stats could not read of a process that starts or ends comes before, by its other output.
        for process in json.loads(done.out[done.out.index("{"):])["processes"] if done.rc == 0 else []:
            for s in process["sockets"]:
                for name, value in s["counters"].items() if s["path"] == "offloaded" else ():
                    sums[name] = sums.get(name, 0) + value
        for name, value in sums.items():
            seen[name] = max(seen.get(name, 0), value)

    def run_looked_at(self, mode, protocol, size=64, loaded=False, client_args=(), server_args=(), **options):
        """Both ends over the library, preloaded or loaded by sockperf itself; the Result and the counters of the client and of the
        server, looked at all the time. Three seconds: on a busy machine a look may take one, and the first datagram, which opens the
        ring, too."""
        folders = [tempfile.TemporaryDirectory(prefix="vma_sockperf.") for _ in "ab"]
        envs = [{"VMA_STATS_SHMEM_DIR": f.name} if loaded else preload_env(VMA_STATS_SHMEM_DIR=f.name) for f in folders]
        load = [f"--load-vma={library()}"] if loaded else []
        client, server = {}, {}
        with folders[0], folders[1], concurrent.futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(sockperf.run_pair, self.a, self.b, mode, protocol, size, client_env=envs[0], server_env=envs[1],
                              client_args=[*load, *client_args], server_args=[*load, *server_args], program=self.program,
                              seconds=3, **options)
            while not run.done():
                self.look(self.a, folders[0].name, client)
                self.look(self.b, folders[1].name, server)
            result = run.result()
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertNotIn("data integrity test failed", result.text)
        self.assertGreater(result.received, 0, result.text)
        self.assertLessEqual(result.received, result.sent, result.text)
        if mode != "tp":
            self.assertGreater(result.answers, 0, result.text)
            self.assertEqual((result.duplicated, result.out_of_order), (0, 0), result.text)
        if mode == "pp":
            self.assertEqual(result.dropped, 0, result.text)
        self.assertLess(result.kernel_in, 0.05 * result.received + case.SLACK, "the server's end was not offloaded")
        return result, client, server

    def zero_copied(self, seen):
        """All but what came before the connection was on a ring."""
        self.assertGreater(seen.get("rx_zcopy", 0), 10, seen)
        self.assertGreaterEqual(seen["rx_zcopy"], 0.9 * seen["rx_packets"] - case.SLACK, seen)

    def filtered(self, seen):
        """The callback took them all: next to nothing was left to be received."""
        self.assertGreater(seen.get("rx_callback", 0), 10, seen)
        self.assertLess(seen["rx_packets"], 0.1 * seen["rx_callback"] + case.SLACK, seen)

    def each(self, check):
        for protocol, mode, wait, loaded in itertools.product(PROTOCOLS, MODES, WAITS, (False, True)):
            with self.subTest(protocol=protocol, mode=mode, wait=wait, loaded=loaded):
                check(mode, protocol, {**WAITS[wait], "loaded": loaded})

    def test_zero_copy_read(self):
        def check(mode, protocol, options):
            # The client of ul is left out: at its end sockperf frees what its receiving thread still reads, if that is waked late.
            own = ZERO_COPY if mode == "pp" else []
            _, client, server = self.run_looked_at(mode, protocol, client_args=own, server_args=ZERO_COPY, **options)
            self.zero_copied(server)
            if own:
                self.zero_copied(client)

        self.each(check)

    def test_receive_callback(self):
        def check(mode, protocol, options):
            _, _, server = self.run_looked_at(mode, protocol, server_args=FILTER, **options)
            self.filtered(server)

        self.each(check)

    def test_data_integrity(self):
        """Of messages of one packet, and of streams' that are many; sockperf ends itself at the first byte that differs."""
        for protocol, size in (("udp", 14), ("udp", 1472), ("tcp", 14), ("tcp", 1400), ("tcp", 63000)):
            with self.subTest("zero copy", protocol=protocol, size=size):
                _, client, server = self.run_looked_at("pp", protocol, size, client_args=[*ZERO_COPY, "--data-integrity"], server_args=ZERO_COPY)
                self.zero_copied(client)
                self.zero_copied(server)
            with self.subTest("callback", protocol=protocol, size=size):
                _, _, server = self.run_looked_at("pp", protocol, size, client_args=["--data-integrity"], server_args=FILTER)
                self.filtered(server)

    def test_dummy_send(self):
        for protocol, loaded in itertools.product(PROTOCOLS, (False, True)):
            with self.subTest(protocol=protocol, loaded=loaded):
                _, client, server = self.run_looked_at("ul", protocol, mps=200, client_args=["--dummy-send=20000"], server_args=ZERO_COPY,
                                                       loaded=loaded)
                self.assertGreater(client.get("tx_dummy", 0), 10 * client["tx_packets"], client)
                self.zero_copied(server)

    def test_rate_limit(self):
        """Bytes a second. What a full send buffer and the ring hold goes on arriving after the client's time."""
        rate, size = 1_000_000, 1000
        for protocol, receiver in itertools.product(PROTOCOLS, (ZERO_COPY, FILTER)):
            with self.subTest(protocol=protocol, receiver=receiver):
                result, client, server = self.run_looked_at("tp", protocol, size, client_args=[f"--rate-limit={rate}"], server_args=receiver)
                (self.zero_copied if receiver is ZERO_COPY else self.filtered)(server)
                most = rate * (result.seconds + 1) + 4_000_000
                self.assertLess(result.received * size, most, result.text)
                self.assertLess(client["tx_bytes"], most, client)
                self.assertLess(client["tx_os_packets"], 0.05 * client["tx_packets"] + case.SLACK, client)


if __name__ == "__main__":
    case.main()
