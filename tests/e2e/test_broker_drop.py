"""How a program gives its privileges up, in every order and with every limit set beside it: what it opens afterwards is
accelerated or the kernel's, with a reason, and never stands still."""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import test_broker_rings as rings
from netns import binary, library, preload_env
from programs import as_user

NOBODY = 65534
NO_THREAD = "the internal thread could not start"


class DropCase(rings.RingCase):
    def copied(self, **env):
        """The environment of a program with the library from a folder that every user may read: the broker is looked for beside it."""
        for source, name in ((library(), "libvma.so"), (binary("vmad"), "vmad"), (os.path.join(case.SUPPORT, "drops.py"), "drops.py")):
            if not os.path.exists(os.path.join(self.folder, name)):  # another program may have it mapped
                shutil.copy(source, os.path.join(self.folder, name))
        return preload_env(os.path.join(self.folder, "libvma.so"), VMA_STATS_SHMEM_DIR=self.folder, VMA_TRACELEVEL="info", **env)

    def program(self, prefix=(), **env):
        env = self.copied(**env)
        program = self.b.start(["/usr/bin/python3", "-B", os.path.join(self.folder, "drops.py"), self.b.ip], env=env, prefix=prefix, stdin=subprocess.PIPE)
        program.expect(r"\bready\b")
        return program

    def threads(self, program):
        """(name, user, effective capabilities, seccomp) of every thread."""
        before = len(program.out)
        self.tell(program, "threads")
        found = re.findall(r"^thread (.*) user (\d+) caps ([0-9a-f]+) seccomp (\d)$", program.out[before:], re.MULTILINE)
        return [(name, int(user), int(caps, 16), int(seccomp)) for name, user, caps, seccomp in found]

    def every_way(self, program, listened=True):
        """A listener of before, one of afterwards, a connection out: all accelerated."""
        if listened:
            self.expect_offloaded(program, self.client(self.port))
        self.expect_offloaded(program, self.accept_from(program, self.port + 1))
        self.tell(program, "listen", self.port + 2)
        self.expect_offloaded(program, self.client(self.port + 2))


class Threads(DropCase):
    """RLIMIT_NPROC, as haproxy sets it: no further thread can be made."""

    def test_none_after_the_drop(self):
        """No ring was open when it dropped: the thread was not needed before."""
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nproc", 0)
        self.tell(program, "listen-bound", self.port)
        self.every_way(program)
        self.assertNotIn(NO_THREAD, program.out)

    def test_without_broker(self):
        """Rings that a listener may need are opened before the drop; steering to them needs no privilege."""
        program = self.program(VMA_BROKER="0")
        self.tell(program, "listen", self.port)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nproc", 0)
        self.every_way(program)

    def test_without_broker_and_ring(self):
        program = self.program(VMA_BROKER="0")
        self.tell(program, "bind", self.port)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nproc", 0)
        self.tell(program, "listen-bound", self.port)
        self.expect_kernel(program, self.client(self.port))
        self.expect_kernel(program, self.accept_from(program, self.port + 1))

    def test_retransmits_while_the_program_sleeps(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nproc", 0)
        s = self.accept_from(program, self.port + 1)
        self.expect_offloaded(program, s)
        self.a.run(["nft", f"add table ip t; add chain ip t i {{ type filter hook input priority 0; }}; "
                    f"add rule ip t i tcp dport {self.port + 1} counter drop"])
        program.stdin.write(b"unseen 4 hello\n")
        program.stdin.flush()
        dropped = lambda: int(re.search(r"packets (\d+)", self.a.run(["nft", "list", "table", "ip", "t"]).out).group(1))
        self.assertTrue(rings.eventually(lambda: dropped() >= 2, 5), "nothing is sent again\n" + program.out)
        self.a.run(["nft", "delete table ip t"])
        self.assertEqual(s.recv(100), b"hello")
        program.expect("did unseen")

    def test_none_at_all(self):
        """An ordinary user with the capabilities for a ring, and no thread to be had: everything is the kernel's."""
        program = self.program(as_user("nobody", "nogroup", ("net_admin", "net_raw", "bpf", "perfmon")))
        self.tell(program, "limit", "nproc", 0)
        self.tell(program, "listen", self.port)
        self.expect_kernel(program, self.client(self.port))
        s = self.accept_from(program, self.port + 1)
        self.expect_kernel(program, s)
        self.assertEqual(program.out.count(NO_THREAD), 1, program.out)
        self.assertIn("the internal thread could not be started", self.explain())
        self.ask(s)


class Orders(DropCase):
    def none_is_privileged(self, program, user=NOBODY, caps=0):
        found = self.threads(program)
        self.assertIn("vma", [name for name, *_ in found])
        self.assertEqual({(of, has) for _, of, has, _ in found}, {(user, caps)}, found)

    def test_by_number(self):
        """One thread, and it changes by itself: the internal thread follows."""
        program = self.program()
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.tell(program, "raw-uid", NOBODY)
        self.none_is_privileged(program)
        self.every_way(program)

    def test_by_number_before_the_first_ring(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "raw-uid", NOBODY)
        self.none_is_privileged(program)
        self.tell(program, "listen-bound", self.port)
        self.every_way(program)

    def test_capabilities_alone(self):
        """Still root by name."""
        program = self.program()
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.tell(program, "caps", "net_bind_service")
        self.none_is_privileged(program, 0, 1 << 10)
        self.every_way(program)

    def test_keeps_capabilities(self):
        """PR_SET_KEEPCAPS is a thread's own, and libc ends the program when a later change of the user fails for one of them."""
        program = self.program()
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.tell(program, "keep")
        self.tell(program, "euid", NOBODY)
        self.tell(program, "euid", 0)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "caps", "setuid", "setgid", "net_bind_service")
        self.tell(program, "uid", 33)
        self.none_is_privileged(program, 33, 1 << 6 | 1 << 7 | 1 << 10)
        self.every_way(program)

    def test_broker_that_may_not_share(self):
        """It was started without CAP_SYS_ADMIN, and can open no ring for others: the listener's is opened before the drop."""
        program = self.program(as_user("nobody", "nogroup", ("net_admin", "net_raw", "bpf", "perfmon")))
        self.tell(program, "listen-only", self.port)
        self.tell(program, "caps")
        self.none_is_privileged(program)
        self.tell(program, "accept", self.port)
        self.every_way(program)

    def test_one_thread_of_several(self):
        """A thread's own affair: the program goes on as it was."""
        program = self.program()
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.tell(program, "thread-uid", NOBODY)
        self.assertEqual({user for _, user, *_ in self.threads(program)}, {0})
        self.every_way(program)

    def test_and_back_and_again(self):
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "euid", NOBODY)
        self.tell(program, "euid", 0)
        self.expect_offloaded(program, self.accept_from(program, self.port + 5))
        self.tell(program, "listen", self.port + 6)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "listen-bound", self.port)
        self.expect_no_tables(program.pid)
        self.expect_offloaded(program, self.client(self.port + 6))
        self.every_way(program)

    def test_into_another_root(self):
        program = self.program()
        empty = os.path.join(self.folder, "empty")
        os.mkdir(empty)
        self.tell(program, "bind", self.port)
        self.tell(program, "chroot", empty)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nproc", 0)
        self.tell(program, "listen-bound", self.port)
        self.every_way(program)

    def test_user_namespace(self):
        """Only a program of one thread may make one. There it has all capabilities, which count nothing for its sockets."""
        program = self.program()
        self.tell(program, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(program, s)
        # Nobody may in a chroot. Then the program must see just that, and go on.
        allowed = self.b.run(["unshare", "--user", "true"]).rc == 0
        if allowed:
            self.tell(program, "new-user")
        else:
            with self.assertRaisesRegex(AssertionError, "failed"):
                self.tell(program, "new-user")
        self.assertEqual(len(self.threads(program)), 2)
        self.expect_offloaded(program, s)
        self.every_way(program)
        self.tell(program, "filter")
        self.expect_kernel(program, s)

    def test_few_descriptors(self):
        """No descriptor left for a ring: the kernel's, and said so."""
        program = self.program()
        self.tell(program, "bind", self.port)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nofile", 12)
        self.tell(program, "listen-bound", self.port)
        self.expect_kernel(program, self.client(self.port))
        self.expect_kernel(program, self.accept_from(program, self.port + 1))

    def test_few_descriptors_with_a_ring(self):
        program = self.program()
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "nofile", 40)
        self.every_way(program)

    def test_filter_afterwards(self):
        """Everything goes to the kernel before the filter: by the broker."""
        program = self.program()
        self.tell(program, "listen", self.port)
        self.tell(program, "uid", NOBODY)
        s, out = self.client(self.port), self.accept_from(program, self.port + 1)
        self.expect_offloaded(program, s)
        self.expect_offloaded(program, out)
        self.tell(program, "filter")
        self.assertNotIn("vma", [name for name, *_ in self.threads(program)])
        self.expect_kernel(program, s)
        self.expect_kernel(program, out)
        self.expect_kernel(program, self.client(self.port))

    def test_small_files(self):
        """RLIMIT_FSIZE: what is too large for the broker's message stays here, and the program is not killed for it."""
        program = self.program()
        self.tell(program, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(program, s)
        self.tell(program, "uid", NOBODY)
        self.tell(program, "limit", "fsize", 1000)
        program.tell("unseen 1 w\nfilter")  # one read: the question is still waiting when the filter is installed
        self.assertEqual(s.recv(100), b"w")
        question = b"x" * 20000
        s.sendall(question)
        program.expect("did filter")
        back = b""
        while len(back) < len(question):
            back += s.recv(65536)
        self.assertEqual(back, question)
        self.expect_offloaded(program, s)

    def test_filter_before(self):
        """From the filter on the process makes no call but the program's own: it would be killed for a look at its capabilities."""
        program = self.program()
        self.tell(program, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(program, s)
        self.tell(program, "filter")
        self.tell(program, "uid", NOBODY)
        self.expect_kernel(program, s)


if __name__ == "__main__":
    case.main()
