"""Interfaces as servers have them: macvlan, a bridge and its members, two cards in one subnet, frames of VLANs; and an interface that is renamed, loses
its address, goes to another namespace or is deleted under a connection. What the ring carries it carries right, what it cannot is the
kernel's, and every byte arrives where the kernel's own would.
"""

import fcntl
import os
import select
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import eventually, preload_env
from raw_tcp import sum16
from tcx import EGRESS, attached
from test_network_changes import ChangeCase, ports

PIECE = 50_000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 2, 0x1000  # linux/if_tun.h
# A connection with a mark.  argv: SUPPORT ADDRESS PORT MARK
MARKED = """import socket, sys
sys.path.insert(0, sys.argv[1])
import duplex
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(sys.argv[4]))
s.connect((sys.argv[2], int(sys.argv[3])))
s.sendall(b"e")
duplex.exchange(s, 1, 500_000, half_close=False)
print("from", s.getsockname()[0], "kernel" if duplex.served_by_kernel(s) else "offloaded")
"""


class KindCase(case.NetCase):
    """A preloaded server on an interface of some kind; the peer in a is the kernel's."""

    preload = True

    def do(self, space, *lines):
        for line in lines:
            done = space.run(line.split())
            self.assertEqual(done.rc, 0, f"{line}\n{done.out}")

    def undo(self, space, line):
        self.addCleanup(lambda: space.run(line.split()))

    def serve(self, address, by_ring=True):
        port = next(ports)
        server = self.python(self.b, "soak_server.py", "plain", address, port, start=True,
                             env=preload_env(VMA_TRACELEVEL="warning") if self.preload else None)
        self.addCleanup(server.kill)
        server.expect("ready")
        if self.preload and by_ring:
            self.b.wait_served(port, server)
        return port

    def ring_carries(self, address):
        """Bytes both ways, by a ring."""
        port = self.serve(address)
        with self.a.call(lambda: duplex.dial(address, port)) as s:
            s.sendall(b"e")
            # The first may be the kernel's, which looks the neighbour up, until the connection is taken over.
            for seed in range(10):
                duplex.exchange(s, seed, PIECE, half_close=False)
            segments = self.kernel_segments(self.b, s)
            if self.preload:
                self.assertLess(segments, case.SLACK)
            else:
                self.assertGreaterEqual(segments, 100)

    def other_subnet(self, number):
        """(address of b, address of a) for an interface of b that is on the link to a."""
        ours, theirs = f"198.18.{number}.2", f"198.18.{number}.1"
        self.do(self.a, f"ip address add {theirs}/24 dev {self.a.dev}")
        self.undo(self.a, f"ip address del {theirs}/24 dev {self.a.dev}")
        return ours


class Kinds(KindCase):
    def test_macvlan(self):
        address = self.other_subnet(20)
        self.do(self.b, f"ip link add link {self.b.dev} name mv type macvlan mode bridge", f"ip address add {address}/24 dev mv",
                "ip link set mv up")
        self.undo(self.b, "ip link del mv")
        port = self.serve(address, by_ring=False)  # the kernel's
        with self.a.call(lambda: duplex.dial(address, port)) as s:
            s.sendall(b"e")
            for seed in range(10):
                duplex.exchange(s, seed, PIECE, half_close=False)
            self.ring_carries(self.b.ip)  # the interface below, at the same time

    def test_bridge(self):
        """The address is the bridge's, the card is a member."""
        address = self.b.ip
        self.undo(self.b, f"ip address add {address}/24 dev {self.b.dev}")
        self.undo(self.b, "ip link del bridge0")
        self.do(self.b, "ip link add bridge0 type bridge", f"ip address flush dev {self.b.dev}", f"ip link set {self.b.dev} master bridge0",
                "ip link set bridge0 up", f"ip address add {address}/24 dev bridge0")
        self.ring_carries(address)

    def test_two_cards_in_one_subnet(self):
        """Either answers ARP for both addresses, so frames for the one come in by the other (ARP flux)."""
        self.do(self.b, f"ip link add second type veth peer name second netns {self.a.name}", "ip link set second up")
        self.undo(self.b, "ip link del second")
        address = f"{self.b.ip.rsplit('.', 1)[0]}.52"
        self.do(self.b, f"ip address add {address}/24 dev second")
        self.do(self.a, "ip link set second up")
        for target in (address, self.b.ip):
            # The ring of one interface is the wrong one for half of what comes: bytes are what counts.
            port = self.serve(target)
            with self.a.call(lambda target=target, port=port: duplex.dial(target, port)) as s:
                s.sendall(b"e")
                for seed in range(10):
                    duplex.exchange(s, seed, PIECE, half_close=False)


    def test_routed_by_mark(self):
        """A peer that is behind either of two links, and a rule that sends what has a mark by the second."""
        self.do(self.b, f"ip link add marked type veth peer name marked netns {self.a.name}", "ip address add 198.18.51.2/24 dev marked",
                "ip link set marked up")
        self.undo(self.b, "ip link del marked")
        self.do(self.a, "ip address add 198.18.51.1/24 dev marked", "ip link set marked up", "ip address add 198.18.50.1/32 dev lo")
        self.undo(self.a, "ip address del 198.18.50.1/32 dev lo")
        self.do(self.b, f"ip route add 198.18.50.1/32 via {self.a.ip}", "ip route add 198.18.50.1/32 via 198.18.51.1 table 100",
                "ip rule add fwmark 7 table 100")
        self.undo(self.b, "ip rule del fwmark 7 table 100")
        self.undo(self.b, "ip route del 198.18.50.1/32")
        port = next(ports)
        server = self.python(self.a, "soak_server.py", "plain", "198.18.50.1", port, start=True)
        self.addCleanup(server.kill)
        server.expect("ready")
        for mark in (7, 0):
            done = self.b.run(["/usr/bin/python3", "-B", "-c", MARKED, case.SUPPORT, "198.18.50.1", port, mark],
                              env=preload_env(VMA_TRACELEVEL="warning") if self.preload else None)
            self.assert_ok(done)
            # Its own address says which link it was.
            self.assertIn(f"from {'198.18.51.2' if mark else self.b.ip} {'offloaded' if self.preload else 'kernel'}", done.out)


class KindsKernel(Kinds):
    preload = False


class Tagged(case.NetCase):
    """Frames with 802.1Q tags, on a TAP whose wire is this test. The namespace has no interface for a VLAN, so frames of one are
    nobody's; the tag that is only a priority (VLAN 0) is as good as none."""

    letters, preload = "b", True
    NEAR, FAR, FAR_MAC = "198.18.40.2", "198.18.40.1", bytes.fromhex("020000000001")

    def setUp(self):
        self.wire = self.b.call(lambda: os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
        self.addCleanup(os.close, self.wire)
        fcntl.ioctl(self.wire, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI))
        self.b.dev = "tap0"
        for line in (f"address add {self.NEAR}/24 dev tap0", "link set tap0 up",
                     f"neigh replace {self.FAR} lladdr {self.FAR_MAC.hex(':')} dev tap0 nud permanent"):
            self.assert_ok(self.b.run(["ip", *line.split()]))
        self.near_mac = bytes.fromhex(self.b.run(["cat", "/sys/class/net/tap0/address"]).out.strip().replace(":", ""))

    def send(self, port, body, tag=b""):
        udp = struct.pack("!HHHH", 40000, port, 8 + len(body), 0) + body
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0, socket.inet_aton(self.FAR),
                         socket.inet_aton(self.NEAR))
        ip = ip[:10] + struct.pack("!H", sum16(ip)) + ip[12:]
        os.write(self.wire, self.near_mac + self.FAR_MAC + tag + b"\x08\x00" + ip + udp)

    def answer(self):
        """The body of the next datagram to us."""
        while select.select([self.wire], [], [], 10)[0]:
            frame = os.read(self.wire, 2048)
            if frame[12:14] == b"\x08\x00" and frame[14 + 9] == socket.IPPROTO_UDP and frame[:6] == self.FAR_MAC:
                return frame[14 + 28:]
        self.fail("no answer")

    def test_only_those_of_no_vlan(self):
        port = next(ports)
        server = self.python(self.b, "udp_echo.py", self.NEAR, port, preload=self.preload, start=True)
        server.expect("ready")
        with self.past_the_kernel(self.b, 100) if self.preload else self.through_the_kernel(self.b, 100):
            for i in range(100):
                body = b"%d" % i
                self.send(port, body, struct.pack("!HH", 0x8100, i % 8 << 13) if i % 2 else b"")
                self.assertEqual(self.answer(), body)
                self.send(port, b"of another network", struct.pack("!HH", 0x8100, 100 + i))


class TaggedKernel(Tagged):
    preload = False


class Gone(ChangeCase):
    """What happens to the interface under the connection that ChangeCase makes."""

    def test_renamed(self):
        """It has to be down for that."""
        self.change(f"ip link set {self.b.dev} down", f"ip link set {self.b.dev} name other0", "ip link set other0 up",
                    undo=["ip link set other0 down", f"ip link set other0 name {self.b.dev}", f"ip link set {self.b.dev} up"])
        self.stays()

    def test_address_goes_and_comes_back(self):
        """Linux goes on with a connection whose address is not there for a while."""
        add = f"ip address add {self.b.ip}/24 dev {self.b.dev}"
        self.change(f"ip address del {self.b.ip}/24 dev {self.b.dev}", undo=[add])
        self.s.sendall(b"x" * 1000)
        self.change(add)
        self.assertEqual(self.s.recv(1000, socket.MSG_WAITALL), b"x" * 1000)
        self.echoed()

    def comes_back(self, *takes_away):
        """The link is taken away with its device; another one with its addresses comes. Bytes that were on their way arrive."""
        self.change(*takes_away)
        self.s.sendall(b"x" * 1000)
        self.change(f"ip link add {self.b.dev} type veth peer name {self.a.dev} netns {self.a.name}")
        if self.preload:  # the guard is on it before it is up, so that the kernel does not answer for the twin
            self.assertTrue(eventually(lambda: attached(self.b, EGRESS) == 1, 10))
        self.change(f"ip address add {self.b.ip}/24 dev {self.b.dev}", f"ip link set {self.b.dev} up")
        self.change(f"ip address add {self.a.ip}/24 dev {self.a.dev}", f"ip link set {self.a.dev} up", space=self.a)
        self.s.settimeout(30)
        self.assertEqual(self.s.recv(1000, socket.MSG_WAITALL), b"x" * 1000)
        self.echoed()
        if self.preload:
            self.assertTrue(eventually(lambda: self.server.running(), 1), self.server.out)

    def test_deleted(self):
        self.comes_back(f"ip link del {self.b.dev}")

    def test_moved_to_another_namespace(self):
        """It ends there; in this one it is as if it had been deleted."""
        self.change(f"ip link set {self.b.dev} netns {self.a.name} name moved")
        self.comes_back(f"ip -n {self.a.name} link del moved")


class GoneKernel(Gone):
    preload = False


if __name__ == "__main__":
    del ChangeCase
    case.main()
