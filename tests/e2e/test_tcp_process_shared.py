"""Sockets that leave the library's sight (stdio, AIO, splice, io_uring, another process or namespace, a system call filter) and
programs that reach for the library's own descriptors. The peer is the kernel's; every byte is checked, no reset is made."""

import os
import socket
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import duplex
from netns import Net, library

PORT = 7500
BYTES = 800_000


class Tcp(case.PeerCase):
    script, port = "shared_ways.py", PORT

    def subject(self, way, *args, address=None, **options):
        return super().subject(way, *(address or (self.a.ip, PORT)), *args, **options)

    def echoed(self, way, *args, connections=1, size=BYTES):
        """A way that makes so many connections, one after the other, and echoes on each until the end."""
        subject = self.subject(way, *args)
        for seed in range(connections):
            s = self.accept(subject)
            try:
                duplex.exchange(s, seed, size)
            except (OSError, AssertionError) as error:
                subject.wait(2)
                self.fail(f"{way}: {error}\n{subject.out}")
        self.finish(subject)

    def spoken(self, way, expected):
        """A way that has ten bytes echoed, is sent three lines and then says `expected` until the end."""
        subject = self.subject(way)
        s = self.accept(subject)
        s.sendall(b"0123456789")
        got = b""
        while len(got) < 10:
            got += s.recv(10)
        self.assertEqual(got, b"0123456789", subject.out)
        s.sendall(b"line 0\nline 1\nline 2\n")
        got = b""
        while piece := s.recv(65536):
            got += piece
        self.assertEqual(got, expected, subject.out)
        self.finish(subject)

    # stdio
    def test_stdio(self):
        self.spoken("stdio", b"printed 7\nto descriptor\nend\n")

    def test_standard_streams(self):
        self.spoken("standard", b"printed\n")

    # calls for the kernel
    def test_splice(self):
        self.echoed("splice")

    def test_files(self):
        self.spoken("files", duplex.pattern(1, 300_000) + b"from memory" * 2)

    def test_aio(self):
        self.spoken("aio", b"listed too")

    def test_io_uring_by_number(self):
        self.echoed("uring_syscall", connections=2)

    def test_options(self):
        self.echoed("options", connections=8, size=200_000)

    # other processes
    def test_passed(self):
        self.echoed("passed", connections=2)

    def test_passed_to_itself(self):
        self.echoed("passed_to_itself")

    def test_passed_listener(self):
        subject = self.subject("passed_listener", address=(self.b.ip, PORT + 1))
        subject.expect("ready")
        with self.a.call(lambda: duplex.dial(self.b.ip, PORT + 1)) as s:
            duplex.exchange(s, 1, BYTES)
        self.finish(subject)

    def test_taken(self):
        """What pidfd_getfd takes is the twin; the owner's connection does not mind."""
        self.echoed("taken")

    # own descriptors
    def test_dup_onto_ours(self):
        self.first_then(self.subject("dup_onto_ours"))

    def test_close_everything(self):
        subject = self.subject("close_everything")
        for seed in range(3):
            s = self.accept(subject)
            duplex.exchange(s, seed, 100_000, half_close=False)
            self.assertEqual(s.recv(1), b"", f"way {seed}: the end is missing\n{subject.out}")
        duplex.exchange(self.accept(subject), 4, BYTES)
        self.finish(subject)

    def first_then(self, subject):
        """A connection whose first 100000 bytes are echoed, another one, then the rest of the first."""
        s = self.accept(subject)
        duplex.exchange(s, 1, 100_000, half_close=False)
        duplex.exchange(self.accept(subject), 2, BYTES)
        duplex.exchange(s, 9, BYTES)
        self.finish(subject)

    def test_low_limit(self):
        self.first_then(self.subject("low_limit"))

    # filters
    def test_filter(self):
        for how in ("prctl", "seccomp"):
            with self.subTest(how):
                subject = self.subject("sandbox", how)
                s = self.accept(subject)
                duplex.exchange(s, 1, 100_000, half_close=False)
                undone, later = self.accept(subject), self.accept(subject)
                duplex.exchange(undone, 2, BYTES)
                duplex.exchange(later, 4, BYTES)
                duplex.exchange(s, 3, BYTES)
                self.finish(subject)

    def test_io_uring_by_name(self):
        self.echoed("uring_library", connections=2)

    def test_filter_in_a_child(self):
        self.echoed("sandbox_child")

    def test_filter_in_a_server(self):
        subject = self.subject("sandbox_server", address=(self.b.ip, PORT + 3))
        subject.expect("filtered")
        clients = [self.a.call(lambda: duplex.dial(self.b.ip, PORT + 3)) for _ in range(2)]
        for seed, s in enumerate(clients):
            with s:
                duplex.exchange(s, seed, BYTES)
        self.finish(subject)

    def test_filter_while_connections_wait(self):
        subject = self.subject("sandbox_waiting", address=(self.b.ip, PORT + 4), stdin=subprocess.PIPE)
        subject.expect("ready")
        clients = [self.a.call(lambda: duplex.dial(self.b.ip, PORT + 4)) for _ in range(2)]
        for s in clients:
            s.sendall(b"first")
        subject.tell("go")
        subject.expect("filtered")
        clients.append(self.a.call(lambda: duplex.dial(self.b.ip, PORT + 4)))
        clients[2].sendall(b"first")
        for seed, s in enumerate(clients):
            with s:
                self.assertEqual(s.recv(5, socket.MSG_WAITALL), b"first")
                duplex.exchange(s, seed, BYTES)
        self.finish(subject)

    def test_filter_from_birth(self):
        subject = self.subject("filtered_from_birth", preload=False, env={"LIBRARY_FOR_LATER": library()})
        duplex.exchange(self.accept(subject), 1, BYTES)
        self.finish(subject)


class Secure(case.PeerCase):
    """Set-user-id and file capabilities: an interpreter of its own, run by an ordinary user. The loader takes LD_PRELOAD from
    neither; /etc/ld.so.preload, here one of a private /etc, it does take."""

    USER = 65534
    port = PORT

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="vt-secure-", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o755)
        # The build tree may be closed to the user.
        self.lib = shutil.copy(library(), f"{self.folder}/libvma.so")
        for name in ("shared_ways.py", "duplex.py", "listening.py"):
            shutil.copy(os.path.join(case.SUPPORT, name), self.folder)
        self.program = shutil.copy(os.path.realpath("/usr/bin/python3"), f"{self.folder}/python")
        etc = f"{self.folder}/etc"
        os.mkdir(etc)
        for name in ("passwd", "group", "ld.so.cache", "hosts"):
            shutil.copy(f"/etc/{name}", etc)
        with open(f"{etc}/ld.so.preload", "w") as f:
            f.write(self.lib + "\n")

    def run_as_user(self, way, expect=""):
        script = (f"mount --bind {self.folder}/etc /etc && exec setpriv --reuid={self.USER} --regid={self.USER} --clear-groups "
                  f"env VMA_TRACELEVEL=warning EXPECT={expect} {self.program} -B {self.folder}/shared_ways.py {way} "
                  f"{self.a.ip} {PORT}")
        subject = self.b.start(["unshare", "-m", "sh", "-c", script])
        with self.accept(subject) as s:
            duplex.exchange(s, 1, BYTES)
        self.finish(subject)

    def test_set_user_id(self):
        os.chmod(self.program, 0o4755)
        self.run_as_user("secure_kernel")

    def test_file_capabilities(self):
        subprocess.run(["setcap", "cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_sys_admin+ep", self.program], check=True)
        self.run_as_user("secure_offloaded", "offloaded")


class Namespaces(Tcp):
    """Only what is about namespaces: the tests of Tcp are not run again."""

    def moved(self, how):
        subject = self.subject("moved", how)
        s = self.accept(subject)
        parts = 2 if how == "thread" else 3
        for seed in range(parts):
            duplex.exchange(s, seed, 100_000, half_close=False)
        duplex.exchange(self.accept(subject), 7, BYTES)
        duplex.exchange(s, 8, BYTES)
        self.finish(subject)

    def test_thread(self):
        self.moved("thread")

    def test_program(self):
        self.moved("program")

    def test_two(self):
        """One process, a ring in each of two namespaces."""
        with Net("xy") as elsewhere:
            x, y = elsewhere["x"], elsewhere["y"]
            listener = x.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.addCleanup(listener.close)
            listener.bind((x.ip, PORT))
            listener.listen(4)
            listener.settimeout(duplex.LIMIT)
            subject = self.subject("two_namespaces", f"/run/netns/{y.name}", x.ip)
            s = self.accept(subject)
            duplex.exchange(s, 1, 100_000, half_close=False)
            try:
                other = listener.accept()[0]
            except TimeoutError:
                self.fail(f"no connection in the other namespace\n{subject.out}")
            with other:
                duplex.exchange(other, 2, 100_000, half_close=False)
                duplex.exchange(s, 3, 100_000, half_close=False)
                duplex.exchange(other, 4, 100_000, half_close=False)
                duplex.exchange(s, 5, BYTES)
                duplex.exchange(other, 6, BYTES)
            self.finish(subject)

    def test_listener(self):
        subject = self.subject("moved_listener", address=(self.b.ip, PORT + 2))
        subject.expect("ready")
        for seed in range(2):
            with self.a.call(lambda: duplex.dial(self.b.ip, PORT + 2)) as s:
                duplex.exchange(s, seed, BYTES)
        self.finish(subject)


for name in [n for n in dir(Tcp) if n.startswith("test_") and n not in vars(Namespaces)]:
    setattr(Namespaces, name, None)


class Udp(case.NetCase):
    preload = True

    def queued(self, way, *args):
        """Two datagrams are echoed, six wait in the library when the way begins; (subject, peer)."""
        subject = self.python(self.b, "shared_ways.py", way, self.b.ip, PORT, *args, start=True, preload=self.preload,
                              stdin=subprocess.PIPE)
        subject.expect("ready")
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(duplex.LIMIT)
        peer.connect((self.b.ip, PORT))
        before = self.b.counters("Udp")["InDatagrams"]
        for i in range(2):
            peer.send(b"first %d\n" % i)
            self.assertEqual(peer.recv(2000), b"first %d\n" % i)
        if self.preload:
            self.assertLess(self.b.counters("Udp")["InDatagrams"] - before, 2, "the server is not offloaded")
        for i in range(6):
            peer.send(b"datagram %d\n" % i)
        subject.expect("next")
        subject.stdin.write(b"\n")
        subject.stdin.flush()
        return subject, peer

    def finish(self, subject, peer):
        for i in range(2):
            peer.send(b"last %d\n" % i)
            self.assertEqual(peer.recv(2000), b"last %d\n" % i, subject.out)
        self.assertEqual(subject.wait(duplex.LIMIT), 0, subject.out)

    def answered(self, way, *args):
        subject, peer = self.queued(way, *args)
        got = sorted(peer.recv(2000) for _ in range(6))
        self.assertEqual(got, [b"datagram %d\n" % i for i in range(6)], subject.out)
        self.finish(subject, peer)

    def read(self, way):
        subject, peer = self.queued(way)
        for i in range(6):
            subject.expect(f"read datagram {i}")
        self.finish(subject, peer)

    def test_fork(self):
        self.answered("udp_fork")

    def test_parent_closes(self):
        self.answered("udp_parent_ends", "closes")

    def test_parent_exits(self):
        self.answered("udp_parent_ends", "exits")

    def test_passed(self):
        self.answered("udp_passed")

    def test_exec(self):
        self.answered("udp_exec")

    def test_filter(self):
        self.answered("udp_filter")

    def test_stdio(self):
        self.read("udp_stdio")

    def test_command(self):
        self.read("udp_command")


class KernelTcp(Tcp):
    """The same without the library: the tests themselves are right."""
    preload = False
    test_filter_from_birth = None


class KernelUdp(Udp):
    preload = False


class KernelNamespaces(Namespaces):
    preload = False


if __name__ == "__main__":
    unittest.main(verbosity=2)
