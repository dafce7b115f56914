"""Peers that break the rules, against a preloaded server: raw frames (tests/support/raw_tcp.py) from an address that no kernel
has. What is defined happens, the drop counters tell, the process lives and its memory stays bounded.
"""

import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually, preload_env
from raw_tcp import ACK, MASK, PSH, RST, RawPeer

ports = itertools.count(7700)
local_ports = itertools.count(30000)


def text(n):
    return (bytes(i * 7 % 251 for i in range(251)) * (n // 251 + 1))[:n]


class Against(case.NetCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.peer_ip = cls.a.ip.rsplit(".", 1)[0] + ".77"
        mac = cls.a.run(["cat", f"/sys/class/net/{cls.a.dev}/address"]).out.strip()
        subprocess.run(["ip", "-n", cls.b.name, "neigh", "add", cls.peer_ip, "lladdr", mac, "dev", cls.b.dev, "nud", "permanent"],
                       check=True)
        cls.mac = cls.b.run(["cat", f"/sys/class/net/{cls.b.dev}/address"]).out.strip()

    def server(self, *words):
        self.port = next(ports)
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        self.serve = self.python(self.b, "tcp_obey.py", self.b.ip, self.port, *words, start=True,
                                 env=preload_env(VMA_TRACELEVEL="warning", VMA_STATS_SHMEM_DIR=self.directory))
        self.serve.expect("ready")

    def resident(self):
        with open(f"/proc/{self.serve.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def drops(self):
        done = self.b.run([binary("vma_stats"), "-k", self.directory, "-p", self.serve.pid, "--json"])
        self.assert_ok(done)
        total = {}
        for process in json.loads(done.out)["processes"]:
            for ring in process["rings"]:
                for name, count in ring["drops"].items():
                    total[name] = total.get(name, 0) + count
        return {name: count for name, count in total.items() if count}

    def dropped(self, name, least):
        """The page for viewers follows within a second."""
        self.assertTrue(eventually(lambda: self.drops().get(name, 0) >= least, 5, 0.2), self.drops())

    def peer(self):
        return RawPeer(self.a, self.peer_ip, self.mac, self.b.ip, self.port, next(local_ports))

    def still_serves(self):
        """A peer that behaves gets what it asks for."""
        self.assertTrue(self.serve.running(), self.serve.out)
        with self.peer() as p:
            p.open()
            p.send(PSH | ACK, data=b"send 5000\n", count=True)
            self.assertEqual(p.take(5000), text(5000))


class Segments(Against):
    def setUp(self):
        self.server()

    def test_window_shrinks_to_zero_and_back(self):
        with self.peer() as p:
            p.open()
            p.window = 20000
            p.send(PSH | ACK, data=b"send 300000\n", count=True)
            got = p.take(15000)
            p.send(window=0)  # takes back what was offered
            early = p.all(0.5)
            late = p.all(1.5)  # probes, their intervals doubling
            self.assertLess(sum(len(s.data) for s in late), 2000, late)
            self.assertLess(len(late), 12, late)
            p.window = 30000
            p.send()
            got += p.take(300000 - len(got))
            self.assertEqual(got, text(300000))
            self.assertLess(sum(len(s.data) for s in early), 40000)
        self.still_serves()

    def test_segments_in_fragments(self):
        """Of IP, as routers make them: in order, backwards, in many. One that is lost: the segment comes again, whole."""
        with self.peer() as p:
            p.open()
            p.send(PSH | ACK, data=b"take 4111\n", count=True, cut=((0, 8), (8, 24), (24, 30)))
            data = text(4111)
            size = 1000 + 20  # of a segment with its header
            cuts = (((0, 504), (504, size)), ((504, size), (0, 504)),
                    [(at, min(at + 8, size)) for at in range(0, size, 8)], ((0, 504), (512, size)))
            for i, cut in enumerate(cuts):
                p.send(PSH | ACK, data=data[1000 * i:1000 * (i + 1)], count=True, cut=cut)
            p.send(PSH | ACK, data=data[4000:], count=True, cut=((0, 128), (128, 131)))
            self.assertTrue(all(s.ack - p.seq & MASK > MASK // 2 and not s.data for s in p.all(0.3)), "acknowledged too much")
            p.send(PSH | ACK, seq=p.seq - 1111, data=data[3000:4000])
            self.assertEqual(p.take(4111), data)
        self.assertNotIn("ip_fragment", self.drops())
        self.still_serves()

    def test_windows_of_one_byte(self):
        with self.peer() as p:
            p.window = 1
            p.open()
            p.send(PSH | ACK, data=b"send 60\n", count=True)
            sizes = []
            got = p.take(60, 60, lambda s: (sizes.append(len(s.data)), p.send()))
            self.assertEqual(got, text(60))
            self.assertLessEqual(max(sizes), 1)
            self.assertLess(len(sizes), 200)
        self.still_serves()

    def test_overlap_of_other_content(self):
        with self.peer() as p:
            p.open()
            p.send(PSH | ACK, data=b"take 500\n", count=True)
            base = p.seq
            p.send(seq=base + 100, data=b"B" * 100)  # held
            p.send(seq=base + 50, data=b"C" * 100)   # overlaps what is held, which wins
            p.send(seq=base, data=b"A" * 50)         # fills the hole
            p.send(seq=base + 300, data=b"E" * 100)  # held
            p.send(seq=base + 200, data=b"D" * 150)  # in order it is delivered at once, held or not
            p.send(seq=base + 100, data=b"x" * 300)  # long delivered
            p.send(PSH | ACK, seq=base + 380, data=b"F" * 120)
            p.seq = base + 500 & MASK
            self.assertEqual(p.take(500), b"A" * 50 + b"C" * 50 + b"B" * 100 + b"D" * 150 + b"E" * 50 + b"F" * 100)
        self.still_serves()

    def test_acks_of_data_never_sent(self):
        with self.peer() as p:
            p.open()
            p.send(PSH | ACK, data=b"take 10\n", count=True)
            p.all(0.2)
            for i in range(2000):
                p.send(ack=p.ack + 1 + i * 1000)
            answers = p.all(0.5)
            self.assertTrue(all(s.flags == ACK and not s.data for s in answers), answers[:5])
            self.assertLess(len(answers), 60)  # RFC 5961 section 7: limited
            p.send(PSH | ACK, data=b"0123456789", count=True)
            self.assertEqual(p.take(10), b"0123456789")
        self.dropped("tcp_ack_range", 1900)
        self.still_serves()

    def test_sack_blocks_that_lie(self):
        rng = random.Random(5)
        before = self.resident()
        with self.peer() as p:
            p.open(sack=True)
            p.send(PSH | ACK, data=b"send 200000\n", count=True)
            start = p.ack

            def lie(_):
                for _ in range(20):
                    blocks = []
                    for _ in range(rng.randint(1, 4)):
                        left = start + rng.choice((-5000, 0, 1, 1000, 30000, 199000, 1 << 30, 1 << 31)) + rng.randint(0, 3000)
                        blocks += [left & MASK, left + rng.choice((-1000, 0, 1, 1460, 20000, 1 << 31)) & MASK]
                    p.send(options=struct.pack(f"!BBBB{len(blocks)}I", 1, 1, 5, 2 + 4 * len(blocks), *blocks))
                p.send()

            self.assertEqual(p.take(200000, 60, lie), text(200000))
        self.assertLess(self.resident() - before, 8192)
        self.still_serves()

    def test_timestamps_that_jump(self):
        with self.peer() as p:
            p.open(stamp=1000000)
            p.send(PSH | ACK, data=b"take 30\n", count=True)
            p.all(0.2)  # acknowledged: from now on a newer stamp counts
            p.send(PSH | ACK, data=b"0123456789", stamp=1000000 + (1 << 30), count=True)  # far ahead: believed
            p.all(0.2)
            p.send(PSH | ACK, data=b"never-seen", stamp=1000001)  # the past: PAWS
            p.send(PSH | ACK, data=b"never-seen", stamp=1000000 + (3 << 30))  # older than 2^31 away
            self.assertTrue(p.all(0.3))  # answered with ACKs
            p.stamp = 1000000 + (1 << 30) + 5
            p.send(PSH | ACK, data=b"abcdefghij0123456789", count=True)
            self.assertEqual(p.take(30), b"0123456789abcdefghij0123456789")
        self.dropped("tcp_paws", 2)
        self.still_serves()

    def test_sizes_of_segments(self):
        for mss, most in ((536, 536), (9000, 1460), (1, 1460), (0, 1460), (65535, 1460), (None, 536)):
            with self.subTest(mss=mss), self.peer() as p:
                p.open(mss=mss)
                p.send(PSH | ACK, data=b"send 20000\n", count=True)
                sizes = []
                self.assertEqual(p.take(20000, 30, lambda s: (sizes.append(len(s.data)), p.send())), text(20000))
                # A frame on a veth may be several segments of the size that it names.
                self.assertGreater(max(sizes), 0)
                print(f"mss {mss}: frames of up to {max(sizes)} bytes", flush=True)
                if self.net_options:
                    self.assertLessEqual(max(sizes), most)
        self.still_serves()

    def test_nonsense(self):
        seed = int.from_bytes(os.urandom(3))
        print(f"seed {seed}", flush=True)
        rng = random.Random(seed)
        before = self.resident()
        for _ in range(20):
            with self.peer() as p:
                p.open(sack=rng.random() < 0.5, stamp=rng.choice((None, 5)))
                p.send(PSH | ACK, data=rng.choice((b"send 50000\n", b"take 50000\n")), count=True)
                for _ in range(300):
                    p.send(rng.choice((0, ACK, ACK, ACK, PSH | ACK, RST, 1 | ACK, 2, 2 | ACK, 32 | ACK, 63, 255)),
                           seq=p.seq + rng.choice((0, 0, 1, -1, 1460, 30000, -30000, 1 << 31)),
                           ack=p.ack + rng.choice((0, 0, 1460, -1, 60000, 1 << 31)),
                           data=rng.randbytes(rng.choice((0, 0, 1, 536, 1400))), window=rng.choice((0, 1, 500, 65535)),
                           options=rng.randbytes(rng.choice((0, 0, 4, 12))))
        self.assertLess(self.resident() - before, 16384)
        print(f"  {self.drops()}", flush=True)
        self.still_serves()


class SmallFrames(Segments):
    """The same with frames of one segment each."""
    net_options = {"offloads": {"tx": "off", "tso": "off", "gso": "off", "gro": "off"}}


class Storm(Against):
    def test_time_wait(self):
        """60 000 connections that our side closes first, within the minute that TIME-WAIT lasts."""
        self.server("close")
        subnet = self.a.ip.rsplit(".", 1)[0]
        for i in range(3):
            subprocess.run(["ip", "-n", self.a.name, "addr", "add", f"{subnet}.{101 + i}/24", "dev", self.a.dev], check=True)
        self.a.sysctl("net.ipv4.ip_local_port_range", "1025 65000")
        before, begin = self.resident(), time.monotonic()
        line = ("import socket, sys\nfor i in range(20000):\n s = socket.socket()\n s.setsockopt(0, 24, 1)\n"
                " s.bind((sys.argv[3], 0))\n s.connect((sys.argv[1], int(sys.argv[2])))\n"
                " if s.recv(1) != b'': sys.exit('text')\n s.close()\n")
        clients = [self.a.start(["/usr/bin/python3", "-c", line, self.b.ip, self.port, f"{subnet}.{101 + i}"]) for i in range(3)]
        for client in clients:
            self.assertEqual(client.wait(120), 0, client.out)
        took, held = time.monotonic() - begin, self.resident()
        print(f"60000 connections in {took:.1f} s; resident {before} KiB before, {held} with what is in TIME-WAIT "
              f"({(held - before) * 1024 / 60000:.0f} bytes each)", flush=True)
        self.assertLess(took, 58)
        self.assertLess(held - before, 64 * 1024)
        self.assertGreater((held - before) * 1024, 60000 * 100)  # they are there
        again = self.a.start(["/usr/bin/python3", "-c", line.replace("20000", "100"), self.b.ip, self.port, f"{subnet}.101"])
        self.assertEqual(again.wait(30), 0, again.out)
        # A minute later they are gone, and as many again need no more memory.
        self.assertTrue(eventually(lambda: time.monotonic() - begin > took + 62, 70))
        clients = [self.a.start(["/usr/bin/python3", "-c", line, self.b.ip, self.port, f"{subnet}.{101 + i}"]) for i in range(3)]
        for client in clients:
            self.assertEqual(client.wait(120), 0, client.out)
        print(f"  and as many again: resident {self.resident()} KiB", flush=True)
        self.assertLess(self.resident() - held, 16 * 1024)


if __name__ == "__main__":
    del Against
    case.main()
