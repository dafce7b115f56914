"""The network changes under live sockets: routes, links, MTU, addresses and firewall rules. What the library can follow stays
on the ring; what only the kernel can do goes to it, mid-stream, with a reason; every byte arrives either way.
"""

import itertools
import os
import re
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import binary, eventually, preload_env

ports = itertools.count(7300)
PIECE = 50_000


class ChangeCase(case.NetCase):
    """A preloaded server in b echoes; the peer in a is the kernel's."""
    preload = True

    def setUp(self):
        super().setUp()
        self.port, self.seed = next(ports), 0
        self.server = self.python(self.b, "soak_server.py", "plain", self.b.ip, self.port, start=True,
                                  env=preload_env(VMA_TRACELEVEL="warning") if self.preload else None)
        self.addCleanup(self.server.kill)
        self.server.expect("ready")
        if self.preload:
            self.b.wait_served(self.port, self.server)
        self.s = self.a.call(lambda: duplex.dial(self.b.ip, self.port))
        self.addCleanup(self.s.close)
        self.s.sendall(b"e")
        self.stays()

    def echoed(self):
        self.seed += 1
        duplex.exchange(self.s, self.seed, PIECE, half_close=False)

    def shown(self):
        """The line of the connection in vma_stats explain."""
        out = subprocess.run([binary("vma_stats"), "explain", "-p", str(self.server.pid)], capture_output=True, text=True,
                             timeout=20, check=True).stdout
        found = re.search(rf"(?m)^ +fd .*-> {re.escape(self.a.ip)}:.*$", out)
        self.assertIsNotNone(found, out)
        return found.group(0)

    def change(self, *lines, space=None, undo=()):
        space = space or self.b
        for line in undo:
            self.addCleanup(lambda line=line: space.run(line.split()))
        for line in lines:
            done = space.run(line.split())
            self.assertEqual(done.rc, 0, f"{line}\n{done.out}")

    def becomes(self, words):
        if self.preload:
            self.assertTrue(eventually(lambda: words in self.shown(), 10),
                            f"not {words!r}: {self.shown()}\n{self.server.out}")
        self.echoed()

    def stays(self):
        """Nothing is to happen: several looks at the network later it is still on the ring."""
        before = self.b.counters("Tcp")["InSegs"]
        for _ in range(20):
            self.echoed()
        if not self.preload:
            return
        self.assertLess(self.b.counters("Tcp")["InSegs"] - before, case.SLACK)
        self.assertIn("offloaded", self.shown())

    def other_link(self):
        """A second veth pair between the namespaces, without addresses."""
        self.change(f"ip link add other type veth peer name another netns {self.a.name}", "ip link set other up",
                    undo=["ip link del other"])
        self.change("ip link set another up", space=self.a)


class Changes(ChangeCase):
    def test_what_has_nothing_to_do_with_it(self):
        self.other_link()
        self.change("ip address add 198.18.7.1/24 dev other", "ip route add 198.18.8.0/24 dev other")
        self.stays()

    def test_the_route_moves_to_another_interface(self):
        self.other_link()
        self.change(f"ip route add {self.a.ip}/32 dev other src {self.b.ip}")
        self.change(f"ip route add {self.b.ip}/32 dev another src {self.a.ip}", space=self.a)
        self.becomes("the route moved to an interface without a ring")

    def test_the_route_gets_a_gateway_on_the_same_interface(self):
        """The gateway is the peer itself under a second address."""
        gateway = f"{self.a.ip.rsplit('.', 1)[0]}.77"
        self.change(f"ip address add {gateway}/32 dev {self.a.dev}", space=self.a,
                    undo=[f"ip address del {gateway}/32 dev {self.a.dev}"])
        self.change(f"ip route add {self.a.ip}/32 via {gateway} dev {self.b.dev}", undo=[f"ip route del {self.a.ip}/32"])
        self.stays()

    def test_the_mtu_shrinks_and_grows(self):
        self.change(f"ip link set {self.b.dev} mtu 1200")
        self.change(f"ip link set {self.a.dev} mtu 1200", space=self.a)
        self.stays()
        self.change(f"ip link set {self.b.dev} mtu 1500")
        self.change(f"ip link set {self.a.dev} mtu 1500", space=self.a)
        self.stays()

    def test_the_link_goes_down_and_comes_back(self):
        """As the kernel's: what is sent meanwhile is repeated. Nothing could be handed back: there is no route."""
        self.change(f"ip link set {self.b.dev} down", undo=[f"ip link set {self.b.dev} up"])
        self.s.sendall(b"x" * 1000)
        self.change(f"ip link set {self.b.dev} up")
        self.assertEqual(self.s.recv(1000, socket.MSG_WAITALL), b"x" * 1000)
        self.stays()

    def test_a_firewall_rule_that_can_match(self):
        self.change("nft add table ip watch", "nft add chain ip watch in { type filter hook input priority 0 ; }",
                    undo=["nft delete table ip watch"])
        self.stays()
        self.change("nft add rule ip watch in ip saddr 198.51.100.1 drop")
        self.stays()
        self.change(f"nft add rule ip watch in tcp dport {self.port} limit rate over 1000000/second drop")
        self.becomes("an nft or iptables rule can match")
        # New connections are the kernel's, too.
        before = self.b.counters("Tcp")["PassiveOpens"]
        with self.a.call(lambda: duplex.dial(self.b.ip, self.port)) as s:
            s.sendall(b"e")
            duplex.exchange(s, 5, PIECE)
        self.assertEqual(self.b.counters("Tcp")["PassiveOpens"], before + 1)


class Kernel(Changes):
    """The same without the library: the changes themselves break nothing."""

    preload = False


if __name__ == "__main__":
    case.main()
