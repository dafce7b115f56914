"""The harness itself, on the kernel alone: what the other tests conclude from it must be true without the library."""

import os
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from netns import Net, eventually

HOLDER = """
import sys, signal
sys.path.insert(0, {support!r})
from netns import Net
with Net("ab") as net:
    net["b"].start(["sleep", "1000"])
    print(net["a"].name, net["b"].name, flush=True)
    signal.pause()
"""


def bound_socket(ip):
    def make():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.settimeout(5)
        s.bind((ip, 0))
        return s
    return make


class Namespaces(case.NetCase):
    def hold(self):
        holder = subprocess.Popen([sys.executable, "-c", HOLDER.format(support=case.SUPPORT)], stdout=subprocess.PIPE,
                                  text=True)
        names = holder.stdout.readline().split()
        self.assertTrue(all(os.path.exists(f"/run/netns/{n}") for n in names) and len(names) == 2)
        holder.stdout.close()
        return holder, names

    def assert_gone(self, names):
        self.assertTrue(eventually(lambda: not any(os.path.exists(f"/run/netns/{n}") for n in names), 10), names)

    def test_removed_when_the_owner_is_killed(self):
        holder, names = self.hold()
        holder.kill()
        holder.wait(5)
        self.assert_gone(names)

    def test_removed_on_sigterm(self):
        holder, names = self.hold()
        holder.terminate()
        self.assertEqual(holder.wait(10), 128 + signal.SIGTERM)
        self.assert_gone(names)

    def test_two_nets_side_by_side(self):
        with Net("ab") as other:
            self.assertNotEqual(other["a"].name, self.a.name)
            receiver, sender = other["b"].call(bound_socket(other["b"].ip)), other["a"].call(bound_socket(other["a"].ip))
            sender.sendto(b"x", receiver.getsockname())
            self.assertEqual(receiver.recv(10), b"x")
            receiver.close()
            sender.close()
        self.assertFalse(os.path.exists(f"/run/netns/{other['a'].name}"))


    def test_counters_see_what_a_program_reads(self):
        receiver, sender = self.b.call(bound_socket(self.b.ip)), self.a.call(bound_socket(self.a.ip))
        self.addCleanup(receiver.close)
        self.addCleanup(sender.close)
        with self.through_the_kernel(self.b, 10), self.past_the_kernel(self.a, 0):
            for _ in range(10):
                sender.sendto(b"x", receiver.getsockname())
                receiver.recv(10)


class Sockperf(case.NetCase):
    """Kernel-only sockperf: every figure the tests use is there and consistent."""

    def test_pp(self):
        result = sockperf.run_pair(self.a, self.b, "pp")
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
        self.assertLessEqual(result.sent - result.received, 1)  # one may be on its way at the end
        self.assertGreater(result.latency["p50"], 0)
        self.assertGreaterEqual(result.kernel_in, result.received)

    def test_tp_counts_at_the_receiver(self):
        result = sockperf.run_pair(self.a, self.b, "tp", size=64)
        self.assertTrue(0 < result.received <= result.sent, result.text)
        self.assertEqual(result.kernel_in, result.received)


case.main()
