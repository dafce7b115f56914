"""vmad of a host (vmad --listen): programs that never had a capability get rings from it, for their own sockets; who may not
write to its socket stays on the kernel and is told."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import test_broker_drop as drops
from netns import binary, eventually

NOBODY, GAMES = 65534, 60
SOCKET = "/run/vma/vmad.sock"  # kHostSocket (src/broker/spawn.h)
NOT_SERVED = "the broker of this host does not serve this process"


class Rootless(drops.DropCase):
    def setUp(self):
        super().setUp()
        self.daemon = None

    def start(self, *words):
        """In a mount namespace with a /run of its own."""
        self.daemon = self.b.start(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && mkdir /run/vma && exec "$0" "$@"',
                                    binary("vmad"), "--listen", *words])
        self.daemon.expect("serving")

    def inside(self, groups=(GAMES,)):
        """Prefix: an ordinary user who sees that socket."""
        kept = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        return ["nsenter", "--mount", f"--target={self.daemon.pid}", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", *kept]

    def expect_no_capability(self, program):
        found = self.threads(program)
        self.assertTrue(found and all((user, caps) == (NOBODY, 0) for _, user, caps, _ in found), program.out)

    def test_a_user_without_any_capability(self):
        self.start("--group", "games")
        program = self.program(self.inside())
        self.expect_no_capability(program)
        self.every_way(program, listened=False)
        self.assertEqual(self.brokers(), [])
        # Without the daemon what it has goes on, and what it opens from now on is the kernel's.
        old = self.client(self.port + 2)
        self.expect_offloaded(program, old)
        self.daemon.send_signal(signal.SIGTERM)
        self.assertEqual(self.daemon.wait(10), -signal.SIGTERM, self.daemon.out)
        self.expect_offloaded(program, old)
        self.tell(program, "listen", self.port + 3)
        self.expect_kernel(program, self.client(self.port + 3))

    def test_who_may_not_write_to_the_socket_is_refused(self):
        self.start("--group", "games")
        program = self.program(self.inside(groups=()))
        self.tell(program, "listen", self.port)
        self.expect_kernel(program, self.client(self.port))
        program.expect(NOT_SERVED + r" \(errno 13\)")

    def test_a_socket_that_is_left_over_is_replaced(self):
        self.start()
        again = [*self.inside()[:3], binary("vmad"), "--listen"]
        second = self.b.run(again, timeout=10)
        self.assertEqual(second.rc, 1)
        self.assertIn("Address already in use", second.out)
        # It is another process of this mount namespace that keeps it when the daemon is killed.
        holder = self.b.start([*self.inside()[:3], "sleep", "60"])
        self.assertTrue(eventually(lambda: os.path.exists(f"/proc/{holder.pid}/root{SOCKET}"), 5))
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait(10)
        third = self.b.start(["nsenter", "--mount", f"--target={holder.pid}", binary("vmad"), "--listen"])
        third.expect("serving")
        self.assertEqual(os.stat(f"/proc/{holder.pid}/root{SOCKET}").st_mode & 0o777, 0o600)


if __name__ == "__main__":
    case.main()
