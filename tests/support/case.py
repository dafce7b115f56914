"""Base of the end-to-end tests: unittest with namespaces and the offload oracle.

The oracle reads the kernel's own UDP counters of the receiver's namespace: datagrams that our stack takes never reach
them, whatever the library says about itself. UDP's InDatagrams counts what programs read from kernel sockets.
"""

import contextlib
import os
import socket
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import duplex  # noqa: E402
from netns import Net, SoftHcaNet, preload_env  # noqa: E402

SUPPORT = os.path.dirname(os.path.abspath(__file__))
SLACK = 20  # datagrams a test's set-up may send through the kernel


class NetCase(unittest.TestCase):
    """A fresh Net per test class; every process of a test ends with the test."""

    letters = "ab"
    net_options = {}
    net_class = Net

    @classmethod
    def setUpClass(cls):
        cls.net = cls.enterClassContext(cls.net_class(cls.letters, **cls.net_options))
        for letter in cls.letters:
            setattr(cls, letter, cls.net[letter])

    def tearDown(self):
        for letter in self.letters:
            self.net[letter].end_processes()

    @contextlib.contextmanager
    def past_the_kernel(self, space, messages):
        """The kernel of the namespace must see less than 5 % of so many datagrams during the block."""
        before = space.counters("Udp")["InDatagrams"]
        yield
        seen = space.counters("Udp")["InDatagrams"] - before
        self.assertLess(seen, 0.05 * messages + SLACK, f"the kernel of {space.letter} delivered {seen} of {messages}")

    @contextlib.contextmanager
    def through_the_kernel(self, space, messages):
        """The kernel of the namespace must deliver at least so many datagrams during the block."""
        before = space.counters("Udp")["InDatagrams"]
        yield
        seen = space.counters("Udp")["InDatagrams"] - before
        self.assertGreaterEqual(seen, messages, f"the kernel of {space.letter} delivered {seen} of {messages}")

    def kernel_segments(self, space, s, questions=100):
        """How many segments of the connection `s` to an echo server the namespace's kernel sees for so many questions: none but of
        others when a ring has it, one a question at least when it is the kernel's. Questions, because of a stream the kernel
        sees a segment where the wire had forty."""
        before = space.counters("Tcp")["InSegs"]
        for i in range(questions):
            question = b"%07d." % i
            s.sendall(question)
            self.assertEqual(s.recv(len(question), socket.MSG_WAITALL), question)
        return space.counters("Tcp")["InSegs"] - before

    def python(self, space, script, *args, preload=False, env=None, start=False, **options):
        """Runs (or starts) a script of tests/support in a namespace by Debian's interpreter. Not unbuffered (-u): a line that
        is printed with flush=True is one write then, and the library's log, on the same pipe, cannot come between its text
        and its end."""
        environ = {**(preload_env() if preload else {}), **(env or {})}
        line = ["/usr/bin/python3", "-B", os.path.join(SUPPORT, script), *map(str, args)]
        return (space.start if start else space.run)(line, env=environ, **options)

    def assert_ok(self, done):
        self.assertEqual(done.rc, 0, done.out)

    def introduce(self, space, other):
        """`space` knows the link address of `other` from here on: else what it sends goes by the kernel until that is resolved, which
        nothing tells."""
        mac = other.run(["ip", "-br", "link", "show", other.dev]).out.split()[2]
        self.assert_ok(space.run(["ip", "neigh", "replace", other.ip, "lladdr", mac, "dev", space.dev, "nud", "permanent"]))


class OnVerbs:
    """Before a NetCase: its rings are those of the software HCA's cards."""

    net_class = SoftHcaNet
    ring_kind = "verbs"

    def setUp(self):
        self.net.plug_in()
        super().setUp()

    def by_verbs(self, space):
        """What a preloaded program of the namespace needs for that."""
        return {"VMA_RING_KIND": self.ring_kind, **self.net.env(space.letter, self.ring_kind)}

    def environment(self):
        return super().environment() | self.by_verbs(self.b)


class OnMlx5(OnVerbs):
    """The same with cards whose queues the ring drives itself. They are strict (docs/SOFTHCA.md): what is wrong in an entry is an error."""

    ring_kind = "mlx5"


class PeerCase(NetCase):
    """The peer is this test, a kernel listener in namespace a; the subject is `script` in b, preloaded or not. No connection
    may end by a reset."""

    preload = True
    script = None
    port = None

    def setUp(self):
        self.listener = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(self.listener.close)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((self.a.ip, self.port))
        self.listener.listen(16)
        self.listener.settimeout(duplex.LIMIT)
        self.resets = self.a.counters("Tcp")["EstabResets"]

    def tearDown(self):
        super().tearDown()
        self.assertEqual(self.a.counters("Tcp")["EstabResets"] - self.resets, 0, "a connection was reset")

    def subject(self, *words, preload=None, **options):
        return self.python(self.b, self.script, *words, start=True, preload=self.preload if preload is None else preload,
                           **options)

    def accept(self, subject):
        try:
            s = self.listener.accept()[0]
        except TimeoutError:
            self.fail(f"no connection from the subject\n{subject.out}")
        s.settimeout(duplex.LIMIT)
        self.addCleanup(s.close)
        return s

    def finish(self, subject):
        """The subject ends well: its last line is "good"."""
        status = subject.wait(2 * duplex.LIMIT)
        self.assertEqual((status, subject.out.splitlines()[-1:]), (0, ["good"]), subject.out)


def main():
    unittest.main(verbosity=2)
