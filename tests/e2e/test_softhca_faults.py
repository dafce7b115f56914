"""The verbs and the mlx5 ring on a device that fails under traffic: requests in error, completion queues that overrun, ports that go down, the
device lost. Every byte is compared, and nothing is left behind.

VMA_TEST_FAULTS is how many faults there are (Full: 1 000), VMA_TEST_SEED chooses the same again, in the same order."""

import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from duplex import exchange, pattern
from netns import binary, eventually, preload_env

PORT = 7990
PATIENCE = 40.0  # seconds until a conversation that began after a fault is over
# What may happen to the device, and how often compared to the others.
FAULTS = (("error", "send"), ("error", "recv"), ("error", "send", "13"), ("error", "recv", "1"), ("overrun", "send"),
          ("overrun", "recv"), ("down",))


class FaultCase(case.OnVerbs, case.NetCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="vma-faults-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def env(self, space):
        return preload_env(VMA_STATS_SHMEM_DIR=self.folder, VMA_TRACELEVEL="info", **self.by_verbs(space))

    def serve(self):
        server = self.python(self.b, "soak_server.py", "plain", self.b.ip, PORT, env=self.env(self.b), start=True)
        server.expect("ready", 30)
        self.b.wait_served(PORT, server, viewer=[binary("vma_stats"), "-k", self.folder])
        return server

    def inject(self, process, *fault):
        done = self.b.run([binary("softhca_ctl"), process.pid, *fault], env=self.net.env("b"))
        self.assertEqual(done.rc, 0, (fault, done.out))

    def seen(self, process):
        """What the statistics page says of the process."""
        done = self.b.run([binary("vma_stats"), "-k", self.folder, "--json", "-p", process.pid])
        self.assertEqual(done.rc, 0, done.out)
        return json.loads(done.out)["processes"][0]

    def talk(self, number, size):
        with self.a.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
            s.settimeout(PATIENCE)
            s.connect((self.b.ip, PORT))
            s.sendall(b"e")  # soak_server.py: only echo
            exchange(s, number, size)


class Short(FaultCase):
    count = int(os.environ.get("VMA_TEST_FAULTS", "25"))

    @staticmethod
    def descriptors(process):
        """What it has open, by what they lead to; without the pipes by which the software HCA wakes who sleeps, one for each that
        it has ever woken."""
        folder = f"/proc/{process.pid}/fd"
        leads = [re.sub(r"\d+", "N", os.readlink(os.path.join(folder, fd))) for fd in os.listdir(folder)]
        return sorted(x for x in leads if "channel-" not in x)

    def frames(self, process):
        return sum(ring["rx_frames"] for ring in self.seen(process)["rings"])

    def strike(self, server, chance):
        fault = chance.choice(FAULTS)
        self.inject(server, *fault)
        if fault == ("down",):
            time.sleep(chance.choice((0, 0.01, 0.2)))  # that long nothing arrives
            self.inject(server, "up")
        return fault

    def test_streams_are_whole_whatever_fails(self):
        """Four conversations at a time with the kernel's TCP at the other end; after each fault one that begins then gets through."""
        seed = int(os.environ.get("VMA_TEST_SEED", random.randrange(1 << 31)))
        print(f"VMA_TEST_SEED={seed}", flush=True)
        server = self.serve()
        self.talk(1, 100)
        descriptors = self.descriptors(server)
        enough, wrong, begun, ended = threading.Event(), [], [0] * 4, [0] * 4

        def work(number):
            chance = random.Random(seed + number)
            while not enough.is_set() and not wrong:
                begun[number] += 1
                try:
                    self.talk(chance.randrange(1000), chance.choice((10, 5000, 60000, 400000)))
                except (OSError, AssertionError) as error:
                    wrong.append(f"conversation {begun[number]} of {number}: {error!r}")
                ended[number] += 1

        crowd = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in crowd:
            thread.start()
        chance, faults = random.Random(seed), []
        try:
            for _ in range(self.count):
                faults.append(self.strike(server, chance))
                number = chance.randrange(4)
                next_one = begun[number] + 1
                got_through = eventually(lambda: ended[number] >= next_one or wrong, PATIENCE)
                self.assertTrue(got_through and not wrong, (wrong, faults[-5:], len(faults)))
        finally:
            enough.set()
            for thread in crowd:
                thread.join(2 * PATIENCE)
        self.assertEqual(wrong, [], faults)
        page = self.seen(server)
        self.assertEqual([(r["kind"], r["open"]) for r in page["rings"]], [(self.ring_kind, True)])
        self.assertGreater(page["rings"][0]["rx_frames"], 4 * self.count, "the kernel did it")
        self.assertEqual([s["path"] for s in page["sockets"] if s["local"].endswith(f":{PORT}")][:1], ["offloaded"])
        self.assertTrue(eventually(lambda: self.descriptors(server) == descriptors), (descriptors, self.descriptors(server)))

    def test_both_ends_fail(self):
        seed = int(os.environ.get("VMA_TEST_SEED", random.randrange(1 << 31)))
        print(f"VMA_TEST_SEED={seed}", flush=True)
        server = self.serve()
        client = self.python(self.a, "soak_client.py", 6, seed, 4, "e", f"{self.b.ip}:{PORT}", env=self.env(self.a), start=True)
        chance, met = random.Random(seed), 0
        while client.running():
            fault = chance.choice(FAULTS[:-1])
            # A device is not open before the first socket needs it, and closed with its process.
            done = self.b.run([binary("softhca_ctl"), chance.choice((server, client)).pid, *fault], env=self.net.env("b"))
            met += done.rc == 0
            # A fault waits for the next frame: without traffic in between none would ever get through.
            before = self.frames(server)
            went_on = eventually(lambda: not client.running() or self.frames(server) > before + 20, PATIENCE)
            self.assertTrue(went_on, (fault, met))
        self.assertEqual(client.wait(2 * PATIENCE), 0, client.out)
        self.assertGreater(met, 10)

    def test_a_lost_device_leaves_its_sockets_to_the_kernel(self):
        """In the middle of a stream, both ways full. The listener is the kernel's from then on, too."""
        server = self.serve()
        data, back = pattern(3, 3_000_000), bytearray()
        with self.a.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
            s.settimeout(PATIENCE)
            s.connect((self.b.ip, PORT))
            s.sendall(b"e" + data[:1_000_000])
            while len(back) < 300_000:
                back += s.recv(65536)
            self.inject(server, "fatal")
            rest = threading.Thread(target=lambda: (s.sendall(data[1_000_000:]), s.shutdown(socket.SHUT_WR)))
            rest.start()
            while piece := s.recv(65536):
                back += piece
            rest.join(PATIENCE)
        self.assertEqual(bytes(back), data)
        self.talk(5, 100_000)
        listener, = [x for x in self.seen(server)["sockets"] if x["local"].endswith(f":{PORT}")]
        self.assertEqual((listener["path"], listener["reason"]), ("kernel", "device_lost"))


class Full(Short):
    count = int(os.environ.get("VMA_TEST_FAULTS", "1000"))


class ShortMlx5(case.OnMlx5, Short):
    pass


class FullMlx5(case.OnMlx5, Full):
    pass


if __name__ == "__main__":
    case.main()
