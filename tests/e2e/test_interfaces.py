"""Interfaces as servers have them: macvlan, a bridge and its members, two cards in one subnet; and an interface that is renamed, loses
its address, goes to another namespace or is deleted under a connection. What the ring carries it carries right, what it cannot is the
kernel's, and every byte arrives where the kernel's own would.
"""

import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import eventually, preload_env
from tcx import EGRESS, attached
from test_network_changes import ChangeCase, ports

PIECE = 50_000


class Kinds(case.NetCase):
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
            segments = [self.exchanged(s, seed) for seed in range(10)]
            # The first may be the kernel's, which looks the neighbour up, until the connection is taken over.
            if self.preload:
                self.assertLess(segments[-1], case.SLACK, f"segments that went to the kernel, for each piece: {segments}")

    def exchanged(self, s, seed):
        """How many segments the kernel of b sees for a piece both ways."""
        before = self.b.counters("Tcp")["InSegs"]
        duplex.exchange(s, seed, PIECE, half_close=False)
        return self.b.counters("Tcp")["InSegs"] - before

    def other_subnet(self, number):
        """(address of b, address of a) for an interface of b that is on the link to a."""
        ours, theirs = f"198.18.{number}.2", f"198.18.{number}.1"
        self.do(self.a, f"ip address add {theirs}/24 dev {self.a.dev}")
        self.undo(self.a, f"ip address del {theirs}/24 dev {self.a.dev}")
        return ours

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


class KindsKernel(Kinds):
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
