"""SIGKILL of a preloaded UDP server: nothing of ours stays behind, the port works on the kernel within a second."""

import os
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually

PORT = 7100


class Killed(case.NetCase):
    def setUp(self):
        self.peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.peer.settimeout(0.05)
        self.addCleanup(self.peer.close)

    def echoed(self, text):
        """Asks the port once; did the answer come within 50 ms?"""
        try:
            self.peer.sendto(text, (self.b.ip, PORT))
            return self.peer.recv(100) == text
        except (TimeoutError, ConnectionRefusedError):
            return False

    def serve(self, preload, *options):
        server = self.python(self.b, "udp_echo.py", self.b.ip, PORT, *options, start=True, preload=preload,
                             stdin=subprocess.PIPE)
        server.expect("ready")
        with self.past_the_kernel(self.b, 500) if preload else self.through_the_kernel(self.b, 500):
            for i in range(500):
                text = b"before %d" % i
                self.assertTrue(eventually(lambda: self.echoed(text), 2), "the server does not answer")
        return server

    def kernel_server_works_within(self, seconds, killed_at):
        """A kernel socket gets the port and hears the peer."""
        def bound():
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                s.bind((self.b.ip, PORT))
                s.settimeout(0.01)
                return s
            except OSError:
                s.close()
                return None

        heir = eventually(lambda: self.b.call(bound), seconds)
        self.assertTrue(heir, "the port stays taken")
        self.addCleanup(heir.close)

        def heard():
            self.peer.sendto(b"after", (self.b.ip, PORT))
            try:
                return heir.recv(100) == b"after"
            except TimeoutError:
                return False

        self.assertTrue(eventually(heard, seconds), "the port is deaf on the kernel")
        self.assertLess(time.monotonic() - killed_at, seconds)

    def kill(self, server):
        at = time.monotonic()
        server.send_signal(9)
        self.assertEqual(server.wait(2, output=False), -9)
        return at

    def child_answers(self, server):
        at = self.kill(server)
        server.stdin.write(b"go\n")
        server.stdin.close()
        self.assertTrue(eventually(lambda: self.echoed(b"child"), 1.0), "the child's socket is deaf")
        self.assertLess(time.monotonic() - at, 1.2)

    def test_kernel(self):
        self.kernel_server_works_within(1.0, self.kill(self.serve(False)))

    def test_preloaded(self):
        self.kernel_server_works_within(1.0, self.kill(self.serve(True)))

    def test_kernel_with_a_sleeping_child(self):
        self.kernel_server_works_within(1.0, self.kill(self.serve(False, "--child", "close")))

    def test_preloaded_with_a_sleeping_child(self):
        self.kernel_server_works_within(1.0, self.kill(self.serve(True, "--child", "close")))

    def test_kernel_child_takes_over_the_socket(self):
        self.child_answers(self.serve(False, "--child", "keep"))

    def test_preloaded_child_takes_over_the_socket(self):
        self.child_answers(self.serve(True, "--child", "keep"))


if __name__ == "__main__":
    case.main()
