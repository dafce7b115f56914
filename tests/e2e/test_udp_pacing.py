"""SO_MAX_PACING_RATE of UDP sockets: never faster, nothing lost, in order. How exact the rate is: docs/evidence/8-udp-pacing.txt."""

import json
import os
import select
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case

PORT = 7750
SIZE = 1000
FRAME = SIZE + 14 + 28
RATE = 250_000
BURST = 2 * 1514


class Paced(case.NetCase):
    def setUp(self):
        self.introduce(self.a, self.b)

    def listener(self):
        listener = self.b.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(listener.close)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        listener.bind((self.b.ip, PORT))
        return listener

    def sender(self, how, rate, count):
        return self.python(self.a, "udp_paced.py", how, self.b.ip, PORT, rate, count, SIZE, start=True, preload=True,
                           stdin=subprocess.PIPE)

    def take(self, listener, count, sender):
        """When each of them came; they are all, and in order."""
        numbers, times = [], []
        while len(numbers) < count and select.select([listener], [], [], 10)[0]:
            numbers.append(int(listener.recv(2000).split(b" ")[0]))
            times.append(time.monotonic())
        self.assertEqual(numbers, list(range(count)), sender.out)
        return times

    @staticmethod
    def told(sender):
        return json.loads(next(line for line in sender.out.splitlines() if line.startswith("{")))

    def send(self, how, count):
        """What the sender tells; all its datagrams have come, none earlier than the rate and one burst allow. Late is not
        wrong here: the machine may be busy."""
        listener = self.listener()
        by_kernel = self.a.counters("Udp")["OutDatagrams"]
        begin = time.monotonic()
        sender = self.sender(how, RATE, count)
        times = self.take(listener, count, sender)
        self.assertEqual(self.a.counters("Udp")["OutDatagrams"], by_kernel, "not by the ring")
        # The first left after `begin`, the last before it was read.
        self.assertGreater(times[-1] - begin, (count * FRAME - BURST) / RATE)
        sender.tell("end")
        self.assertEqual(sender.wait(10), 0, sender.out)
        return self.told(sender)

    def test_blocking(self):
        """What does not fit into the send buffer waits in the call."""
        told = self.send("block", 300)
        self.assertGreater(told["seconds"], 0.3, told)

    def test_polling(self):
        self.assertGreater(self.send("poll", 300)["full"], 0)

    def test_closed_while_it_waits(self):
        """All of it fits; the socket is closed at once, and what waits leaves in its time."""
        self.assertEqual(self.send("poll", 40)["full"], 0)

    def test_unsent(self):
        """SIOCOUTQ: nearly all of it still waits, for 20 s by this rate; the end of the process lets it go."""
        listener = self.listener()
        sender = self.sender("leave", 2000, 40)
        sender.tell("end")
        self.assertEqual(sender.wait(10), 0, sender.out)
        self.take(listener, 40, sender)
        unsent = self.told(sender)["unsent"]
        charge = 576 + (FRAME + 63) // 64 * 64
        self.assertEqual(unsent % charge, 0, unsent)
        self.assertGreater(unsent, 20 * charge)  # later ones have left if the sender was kept waiting
        self.assertLess(unsent, 39 * charge)


if __name__ == "__main__":
    case.main()
