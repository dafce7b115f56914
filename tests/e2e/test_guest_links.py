"""In a guest with a kernel that has TCX (6.12): interfaces of drivers that not every machine has. A VLAN goes by a ring; macvlan and
ipvlan are the kernel's, with the reason. Every byte arrives.
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import binary, preload_env
from test_interfaces import KindCase
from test_network_changes import ports

PIECE = 50_000
NO_RING = "the interface is not Ethernet, is down or cannot carry a ring"


class LinkCase(KindCase):
    def kernel_carries(self, address):
        """Bytes both ways, by the kernel, and why."""
        port = next(ports)
        server = self.python(self.b, "soak_server.py", "plain", address, port, start=True, env=preload_env(VMA_TRACELEVEL="warning"))
        self.addCleanup(server.kill)
        server.expect("ready")
        with self.a.call(lambda: duplex.dial(address, port)) as s:
            s.sendall(b"e")
            for seed in range(20):
                duplex.exchange(s, seed, PIECE, half_close=False)
            self.assertGreaterEqual(self.kernel_segments(self.b, s), 100)
            told = subprocess.run([binary("vma_stats"), "explain", "-p", str(server.pid)], capture_output=True, text=True, timeout=100,
                                  check=True).stdout
            self.assertRegex(told, r"-> [\d.]+:\d+ +kernel")
            self.assertIn(NO_RING, told)
        self.assertTrue(server.running(), server.out)

    def datagrams(self, address):
        """UDP both ways, by a ring."""
        port = next(ports)
        server = self.python(self.b, "udp_echo.py", address, port, preload=True, start=True)
        self.addCleanup(server.kill)
        server.expect("ready")
        with self.past_the_kernel(self.b, 300):
            self.assert_ok(self.python(self.a, "udp_talk.py", "quic", address, port, 300))


class Vlan(LinkCase):
    """Tagged by the kernel's VLAN interface, whose ring sees frames without."""

    def vlan(self, more=""):
        for space, host in ((self.a, 1), (self.b, 2)):
            self.do(space, f"ip link add link {space.dev} name v.100 type vlan id 100 {more}", f"ip address add 198.18.60.{host}/24 dev v.100",
                    "ip link set v.100 up")
            self.undo(space, "ip link del v.100")
        return "198.18.60.2"

    def test_streams_and_datagrams(self):
        address = self.vlan()
        self.ring_carries(address)
        self.datagrams(address)
        self.ring_carries(self.b.ip)  # the card itself, at the same time

    def test_header_not_reordered(self):
        """Programs on the interface see frames with their tag, behind which the hook finds no header: the kernel's."""
        self.kernel_carries(self.vlan("reorder_hdr off"))


class Above(LinkCase):
    """Interfaces on top of the card."""

    def above(self, number, kind):
        address = self.other_subnet(number)
        self.do(self.b, f"ip link add link {self.b.dev} name above type {kind}", f"ip address add {address}/24 dev above", "ip link set above up")
        self.undo(self.b, "ip link del above")
        return address

    def test_macvlan(self):
        self.kernel_carries(self.above(61, "macvlan mode bridge"))

    def test_ipvlan(self):
        self.kernel_carries(self.above(62, "ipvlan mode l2"))


if __name__ == "__main__":
    del KindCase, LinkCase
    case.main()
