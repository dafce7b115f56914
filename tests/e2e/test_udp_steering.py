"""Steering under load: a socket is bound and closed 10 000 times while a kernel peer sends to it without pause. The kernel
may answer "port unreachable" only when no socket is bound: it must never do so for a datagram sent while one is.

The peer keeps the time each numbered datagram was sent in (before and after sendto, which on veth delivers it and brings
back the answer), and reads from its error queue which ones were refused; the program writes when it was surely bound.
"""

import bisect
import os
import socket
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary

PORT, CYCLES = 7200, 10000
IP_RECVERR = 11


class Churn(case.NetCase):
    def setUp(self):
        self.b.sysctl("net.ipv4.icmp_ratemask", 0)  # every refusal is answered, none held back

    def drain(self, peer, refused):
        while True:
            try:
                data = peer.recvmsg(100, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)[0]
            except BlockingIOError:
                return
            refused.add(struct.unpack("!I", data[:4])[0])

    def send_while_running(self, peer, program):
        sent, refused = [], set()
        end = time.monotonic() + 120
        while program.running() and time.monotonic() < end:
            for _ in range(50):
                data = struct.pack("!I", len(sent))
                begin = time.monotonic_ns()
                try:
                    peer.sendto(data, (self.b.ip, PORT))
                except ConnectionRefusedError:  # a refusal of an earlier one; this one was not sent
                    continue
                sent.append((begin, time.monotonic_ns()))
                self.drain(peer, refused)
        self.drain(peer, refused)
        return sent, refused

    def churn(self, env):
        spans_file = tempfile.NamedTemporaryFile(prefix="vt-spans-")
        self.addCleanup(spans_file.close)
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        os.sched_setaffinity(0, {0})
        self.addCleanup(os.sched_setaffinity, 0, set(range(os.cpu_count())))
        program = self.b.start([binary("steer_churn"), self.b.ip, PORT, CYCLES, spans_file.name], cpu=1, env=env)
        program.expect("ready")
        sent, refused = self.send_while_running(peer, program)
        self.assertEqual(program.wait(5), 0, program.out)
        self.assertIn(f"cycles={CYCLES}", program.out)
        numbers = struct.unpack(f"={2 * CYCLES}q", spans_file.read())
        starts, ends = numbers[::2], numbers[1::2]
        wrong, inside = 0, 0
        for number, (begin, end) in enumerate(sent):
            at = bisect.bisect_right(starts, begin) - 1
            if at >= 0 and end <= ends[at]:
                inside += 1
                wrong += number in refused
        print(f"{len(sent)} sent, {inside} of them to a bound socket, {len(refused)} refused, {wrong} wrongly; "
              f"{program.out.split()[-1]}", file=sys.stderr)
        self.assertGreater(inside, CYCLES // 10, "too few datagrams met a bound socket for the test to mean anything")
        self.assertGreater(len(refused), 0, "no refusal was seen at all: the peer would not see a wrong one")
        self.assertEqual(wrong, 0)
        return int(program.out.split("heard=")[1])

    def test_kernel(self):
        self.churn(None)

    def test_preloaded(self):
        before = self.b.counters("Udp")["InDatagrams"]
        heard = self.churn(case.preload_env())
        through_kernel = self.b.counters("Udp")["InDatagrams"] - before
        self.assertGreater(heard, CYCLES // 10)
        self.assertLess(through_kernel, heard / 2, "the churned socket was not offloaded")


if __name__ == "__main__":
    case.main()
