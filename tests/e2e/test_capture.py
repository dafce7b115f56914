"""Every packet: vma_capture shows from outside what a preloaded program sends and receives; tshark decodes it, the streams put
together again are those that were sent, and the program never waits for whoever captures."""

import hashlib
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually
from viewed import echoes

PORT = 7410


class Captured(case.NetCase):
    script = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-capture-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.program = self.python(self.b, self.script, self.b.ip, PORT, preload=True, start=True, stdin=subprocess.PIPE,
                                   env={"VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "warning"})
        self.pid = self.program.expect(r"ready (\d+)").group(1)
        self.file = os.path.join(self.folder, "capture.pcapng")

    def capture(self, *args):
        """A running vma_capture that writes self.file; the process knows of it."""
        capture = self.b.start([binary("vma_capture"), "-k", self.folder, "-p", self.pid, "-w", self.file, *args])
        capture.expect(r"capturing from python3")
        return capture

    def finish(self, capture):
        """Frames captured and dropped."""
        capture.send_signal(signal.SIGINT)
        self.assertEqual(capture.wait(10), 0, capture.out)
        return tuple(map(int, re.search(r"(\d+) frames captured, (\d+) dropped", capture.out).groups()))

    def tshark(self, *args):
        done = subprocess.run(["tshark", "-r", self.file, *args], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def fields(self, *names, only=""):
        wanted = [word for name in names for word in ("-e", name)]
        return [line.split("\t") for line in self.tshark("-Y", only, "-T", "fields", *wanted).splitlines()]


class Streams(Captured):
    script = "tcp_seen.py"

    def test_a_stream_put_together_again_is_the_one_that_was_sent(self):
        seed = int(os.environ.get("VMA_TEST_SEED", "2026"))
        print(f"VMA_TEST_SEED={seed}")
        data = random.Random(seed).randbytes(600_000)
        capture = self.capture()
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(client.close)
        client.settimeout(10)
        client.connect((self.b.ip, PORT))
        back = b""
        for at in range(0, len(data), 30_000):
            client.sendall(data[at : at + 30_000])
            while len(back) < min(at + 30_000, len(data)):
                back += client.recv(65536)
        self.assertEqual(back, data)
        client.close()
        self.program.stdin.close()
        self.assertEqual(self.program.wait(10), 0, self.program.out)
        taken, dropped = self.finish(capture)
        self.assertEqual(dropped, 0)
        frames = self.fields("frame.number", "frame.interface_name", "frame.packet_flags_direction", "ip.src", "tcp.srcport")
        self.assertEqual(len(frames), taken)
        for _, interface, direction, source, port in frames:
            self.assertEqual(interface, self.b.dev)
            self.assertEqual((direction, port == str(PORT)), ("0x00000002", True) if source == self.b.ip else ("0x00000001", False))
        self.assertEqual(self.tshark("-Y", "_ws.malformed || _ws.short || !tcp"), "")
        # Both halves of the stream, out of the capture.
        sums = {"in": hashlib.sha256(), "out": hashlib.sha256()}
        text = self.tshark("-q", "-z", "follow,tcp,raw,0")
        for line in text.splitlines():
            if re.fullmatch(r"\t?(?:[0-9a-f]{2})+", line):
                sums["out" if line.startswith("\t") else "in"].update(bytes.fromhex(line.strip()))
        sent = hashlib.sha256(data).hexdigest()
        self.assertEqual({side: s.hexdigest() for side, s in sums.items()}, {"in": sent, "out": sent})


class Frames(Captured):
    script = "udp_seen.py"

    def talk(self, count, port=PORT):
        return echoes(self, port, count)

    def bad_sum(self):
        """A datagram whose checksum is wrong: the library drops it."""
        raw = self.a.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
        raw.sendto(struct.pack("!HHHH", 9999, PORT, 12, 0x1234) + b"bad!", (self.b.ip, 0))
        raw.close()

    def test_a_dropped_frame_says_why(self):
        self.talk(1)
        capture = self.capture()
        self.bad_sum()
        self.talk(3)
        taken, _ = self.finish(capture)
        comments = self.fields("udp.srcport", "frame.comment")
        self.assertEqual(len(comments), taken)
        said = [c for port, *rest in comments for c in rest if c]
        self.assertEqual(said, ["dropped: udp_checksum: UDP checksum wrong"], comments)
        self.assertEqual([port for port, *rest in comments if any(rest)], ["9999"])

    def test_only_what_the_filter_wants(self):
        capture = self.capture("src host " + self.a.ip)
        self.talk(5)
        taken, _ = self.finish(capture)
        self.assertEqual(taken, 5)
        self.assertEqual({src for (src,) in self.fields("ip.src")}, {self.a.ip})
        done = self.b.run([binary("vma_capture"), "-k", self.folder, "-p", self.pid, "no such filter"])
        self.assertEqual(done.rc, 1)
        self.assertRegex(done.out, r"filter 'no such filter': .*syntax error")

    def test_into_wireshark(self):
        tool = [binary("vma_capture"), "-k", self.folder]
        out = self.b.run([*tool, "--extcap-interfaces"]).out
        self.assertRegex(out, rf"(?m)^interface {{value=vma-{self.pid}}}{{display=libvma: python3\S* \({self.pid}\)}}$")
        self.assertIn("dlt {number=1}", self.b.run([*tool, "--extcap-dlts", "--extcap-interface", f"vma-{self.pid}"]).out)
        self.talk(1)
        fifo = os.path.join(self.folder, "fifo")
        os.mkfifo(fifo)
        capture = self.b.start([*tool, "--capture", "--extcap-interface", f"vma-{self.pid}", "--fifo", fifo])
        reader = subprocess.Popen(["tshark", "-l", "-i", fifo, "-c", "4", "-T", "fields", "-e", "udp.dstport"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(reader.kill)
        capture.expect(r"capturing from")
        port = self.talk(2)
        self.assertEqual(reader.communicate(timeout=30)[0].split(), [str(PORT), str(port)] * 2)
        # tshark has gone: so does the capture, with the next frame.
        self.talk(1)
        self.assertEqual(capture.wait(10), 0, capture.out)

    def test_the_program_never_waits(self):
        self.talk(1)
        capture = self.capture("--buffer", "65536")
        capture.send_signal(signal.SIGSTOP)
        self.talk(1500)  # more than the buffer holds, twice over
        capture.send_signal(signal.SIGCONT)
        taken, dropped = self.finish(capture)
        self.assertGreater(taken, 100)
        self.assertGreater(dropped, 100)
        self.assertEqual(taken + dropped, 3000)
        self.assertEqual(len(self.fields("frame.number")), taken)

    def test_a_killed_capture_leaves_nothing(self):
        self.talk(1)
        capture = self.capture()
        capture.kill()
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith("vmacap")], [])
        self.talk(10)

        def again():
            done = self.b.run([binary("vma_capture"), "-k", self.folder, "-p", self.pid, "-w", self.file, "-t", "0.1"])
            return done.rc == 0

        self.assertTrue(eventually(again, timeout=20))
        self.assertEqual(self.tshark(), "")
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith("vmacap")], [])

    def test_nothing_to_capture(self):
        done = self.b.run([binary("vma_capture"), "-k", self.folder, "-p", "1"])
        self.assertEqual(done.rc, 1)
        self.assertIn("no page", done.out)
        self.assertEqual(self.b.run([binary("vma_capture"), "--nonsense"]).rc, 1)


if __name__ == "__main__":
    case.main()
