"""The broker: what a killed process had written arrives, a child keeps the connection of its killed parent, a process without
privileges hands back all the same; nobody notices that there is a broker, and nothing of it stays."""

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually

PORT = 7300
FIN_WAIT_1 = 4  # of TCP_INFO


def pattern(n, seed=0):
    block = bytes((i * 31 + (i >> 8) + seed) & 0xff for i in range(1 << 16))
    return (block * (n // len(block) + 1))[:n]


def state_of(s):
    return s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def brokers(space):
    """Process ids of the brokers in a namespace."""
    found = []
    for pid in space.pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if f.read().startswith(b"vmad\0--broker\0"):
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


class BrokerCase(case.NetCase):
    port = PORT

    def setUp(self):
        BrokerCase.port += 10
        self.resets = self.b.counters("Tcp")["OutRsts"]

    def serve(self, kind, **options):
        server = self.python(self.b, "broker_server.py", kind, self.b.ip, self.port, start=True, preload=True,
                             stdin=subprocess.PIPE, **options)
        server.expect(r"\bready\b")
        self.b.wait_served(self.port, server)
        return server

    def client(self, receive_buffer=None):
        s = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(s.close)
        s.settimeout(15)
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.connect((self.b.ip, self.port))
        self.assertFalse(self.in_the_kernel(s), "the connection is the kernel's")
        return s

    def in_the_kernel(self, client):
        """Has the kernel of the server's namespace the other end of that connection?"""
        ends = [self.port, client.getsockname()[1]]  # a client's port alone may be in TIME-WAIT with another server
        for line in self.b.read("/proc/thread-self/net/tcp").splitlines()[1:]:
            if [int(end.split(":")[1], 16) for end in line.split()[1:3]] == ends:
                return True
        return False

    def read_all(self, s):
        back = bytearray()
        while True:
            piece = s.recv(65536)
            if not piece:
                return bytes(back)
            back += piece

    def read_exactly(self, s, n):
        back = bytearray()
        while len(back) < n:
            piece = s.recv(n - len(back))
            self.assertTrue(piece, f"the end after {len(back)} of {n} bytes")
            back += piece
        return bytes(back)

    def no_resets(self):
        self.assertEqual(self.b.counters("Tcp")["OutRsts"], self.resets, "the kernel reset a connection")

    def all_gone(self):
        self.assertTrue(eventually(lambda: not brokers(self.b), 5), "a broker stays")


class Rescue(BrokerCase):
    def killed_with_unsent(self, seconds_before_reading):
        server = self.serve("unsent")
        client = self.client(receive_buffer=20000)
        written = int(server.expect(r"written (\d+)").group(1))
        self.assertGreater(written, 60000)
        self.assertEqual(len(brokers(self.b)), 1)
        server.send_signal(signal.SIGKILL)
        self.assertEqual(server.wait(5, output=False), -9)
        time.sleep(seconds_before_reading)  # the peer is slow: its window is shut
        self.assertEqual(self.read_all(client), pattern(8 << 20)[:written])
        self.no_resets()
        self.all_gone()

    def test_unsent_data_arrives_with_its_end(self):
        self.killed_with_unsent(0)

    def test_unsent_data_arrives_at_a_slow_peer(self):
        self.killed_with_unsent(1.5)

    def test_many_connections(self):
        server, clients, _ = self.killed_with(100)
        self.everything_arrives(server, clients)

    def stopped_in_between(self, broker, clients):
        """Stops the broker, whose client has just been killed, before it answers the process that restores the connections,
        and waits until that one has them all. False: the stop came too late, all is over."""
        try:
            with open(f"/proc/{broker}/task/{broker}/children", "rb", buffering=0) as children:
                deadline = time.monotonic() + 2
                while not (child := os.pread(children.fileno(), 100, 0).split()):
                    if time.monotonic() > deadline:
                        return False  # it came and went while this process did not run
            os.kill(broker, signal.SIGSTOP)

            def over():
                with open(f"/proc/{int(child[0])}/stat", "rb") as f:
                    return f.read().rsplit(b")", 1)[1].split()[0] == b"Z"

            eventually(lambda: over() or all(map(self.in_the_kernel, clients)), 10)
            return not over()
        except (ProcessLookupError, FileNotFoundError):
            return False

    def let_go_on(self, broker):
        try:
            os.kill(broker, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def killed_with(self, connections):
        """A server with so many connections that has just been killed: its clients and its broker."""
        server = self.python(self.b, "broker_many.py", self.b.ip, self.port, connections, start=True, preload=True)
        server.expect(r"\bready\b")
        self.b.wait_served(self.port, server)
        clients = [self.client() for _ in range(connections)]
        server.expect(f"accepted {connections}")
        broker, = brokers(self.b)
        server.send_signal(signal.SIGKILL)
        return server, clients, broker

    def everything_arrives(self, server, clients):
        self.assertEqual(server.wait(5, output=False), -9)
        for i, client in enumerate(clients):
            self.assertEqual(self.read_all(client), b"hello %d" % i)
            client.close()
        self.all_gone()

    def killed_while_it_restores(self, connections):
        """The broker, before it has given the connections of a killed server to the kernel; False: it was too quick."""
        server, clients, broker = self.killed_with(connections)
        in_time = self.stopped_in_between(broker, clients)
        if in_time:
            os.kill(broker, signal.SIGKILL)
        else:
            self.let_go_on(broker)
        self.everything_arrives(server, clients)
        return in_time

    def test_a_broker_that_is_killed_while_it_restores(self):
        """The process that restores goes on without it, and nothing else waits for that."""
        for _ in range(8):
            if self.killed_while_it_restores(100):
                return self.no_resets()
            self.port += 1
        self.fail("the broker was never stopped in time")

    def fins_while_restored(self, connections):
        """Whether the kernel took a FIN while the connections of a killed server were being restored; None: it was too quick."""
        server, clients, broker = self.killed_with(connections)
        heard = None
        try:
            if self.stopped_in_between(broker, clients):
                for client in clients:
                    client.shutdown(socket.SHUT_WR)
                heard = eventually(lambda: any(state_of(c) != FIN_WAIT_1 for c in clients), 0.5)
        finally:
            self.let_go_on(broker)
        self.everything_arrives(server, clients)
        return heard

    def test_nothing_reaches_a_socket_that_is_being_restored(self):
        # They are young: none has a flow of its own, their listener's covers them all.
        for _ in range(8):
            heard = self.fins_while_restored(100)
            if heard is not None:
                self.assertFalse(heard, "the kernel took a FIN")
                return self.no_resets()
            self.port += 1
        self.fail("the broker was never stopped in time")

    def test_exec_ends_what_it_closes(self):
        server = self.serve("exec")
        client = self.client(receive_buffer=20000)
        written = int(server.expect(r"written (\d+)").group(1))
        self.assertEqual(self.read_all(client), pattern(8 << 20)[:written])
        self.no_resets()
        server.kill()
        self.all_gone()

    def test_port_is_free_again(self):
        for _ in range(2):
            server = self.serve("unsent")
            client = self.client(receive_buffer=20000)
            written = int(server.expect(r"written (\d+)").group(1))
            server.send_signal(signal.SIGKILL)
            self.assertEqual(server.wait(5, output=False), -9)
            self.assertEqual(len(self.read_all(client)), written)
            client.close()


class Child(BrokerCase):
    def parent_killed(self, before):
        server = self.serve("child")
        client = self.client()
        server.expect(r"forked (\d+)")
        if before:
            client.sendall(pattern(30000))
        server.send_signal(signal.SIGKILL)
        self.assertEqual(server.wait(5, output=False), -9)
        if not before:
            client.sendall(pattern(30000))
        server.stdin.write(b"go\n")
        server.stdin.flush()
        self.assertEqual(self.read_exactly(client, 30000), pattern(30000))
        client.sendall(pattern(300000, 5))
        self.assertEqual(self.read_exactly(client, 300000), pattern(300000, 5))
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(client.recv(1), b"")
        server.expect("done")
        self.no_resets()
        self.all_gone()

    def test_child_goes_on_when_the_parent_is_killed(self):
        self.parent_killed(before=False)

    def test_what_the_peer_sent_before_is_there(self):
        self.parent_killed(before=True)

    def test_unread_and_unsent_bytes_move_along(self):
        server = self.serve("both")
        client = self.client(receive_buffer=20000)
        client.sendall(b"first")
        self.assertEqual(self.read_exactly(client, 5), b"first")
        written = int(server.expect(r"written (\d+)").group(1))
        client.sendall(pattern(5000, 3))
        server.expect(r"forked (\d+)")
        server.send_signal(signal.SIGKILL)
        self.assertEqual(server.wait(5, output=False), -9)
        self.assertEqual(self.read_exactly(client, written), pattern(8 << 20)[:written])
        server.stdin.write(b"go\n")
        server.stdin.flush()
        self.assertEqual(self.read_exactly(client, 5000), pattern(5000, 3))
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(client.recv(1), b"")
        self.no_resets()
        self.all_gone()


class Dropped(BrokerCase):
    def test_nobody_hands_back_and_connects(self):
        server = self.serve("drop")
        back = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(back.close)
        back.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        back.bind((self.a.ip, self.port + 1))
        back.listen(1)
        back.settimeout(10)
        client = self.client()
        client.sendall(pattern(200000))
        self.assertEqual(self.read_exactly(client, 200000), pattern(200000))
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(client.recv(1), b"")
        other, _ = back.accept()
        self.addCleanup(other.close)
        server.expect("connected")
        other.settimeout(10)
        received = self.b.counters("Tcp")["InSegs"]
        for _ in range(200):
            other.sendall(b"question")
            self.assertEqual(self.read_exactly(other, 8), b"question")
        self.assertLess(self.b.counters("Tcp")["InSegs"] - received, 50, "the connection is the kernel's")
        other.shutdown(socket.SHUT_WR)
        server.expect("done")
        self.assertEqual(server.wait(10), 0, server.out)
        self.no_resets()
        self.all_gone()

    def test_nobody_is_rescued(self):
        """Killed after the drop: the port was shown before."""
        server = self.serve("drop")
        client = self.client()
        client.sendall(b"x")
        self.assertEqual(client.recv(1), b"x")
        os.kill(server.pid, signal.SIGKILL)
        self.assertEqual(server.wait(5, output=False), -9)
        client.sendall(b"y")
        self.assertEqual(client.recv(1), b"y")
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(client.recv(1), b"")
        self.all_gone()


class Unseen(BrokerCase):
    def test_wait_finds_no_child(self):
        server = self.serve("wait")
        client = self.client()
        server.expect("none")
        broker, = brokers(self.b)
        os.kill(broker, signal.SIGKILL)
        client.sendall(pattern(50000))
        self.assertEqual(self.read_exactly(client, 50000), pattern(50000))
        client.shutdown(socket.SHUT_WR)
        server.expect("done")
        self.assertEqual(server.wait(10), 0, server.out)
        self.no_resets()

    def test_switched_off(self):
        server = self.serve("unsent", env={"VMA_BROKER": "0"})
        self.client()
        server.expect("written")
        self.assertEqual(brokers(self.b), [])

    def test_no_executable(self):
        server = self.serve("wait", env={"VMA_BROKER_PATH": "/nowhere/vmad"})
        client = self.client()
        client.sendall(b"hello")
        self.assertEqual(self.read_exactly(client, 5), b"hello")
        self.assertEqual(brokers(self.b), [])
        self.assertEqual(server.out.count("no broker"), 1, server.out)

    def test_inherits_nothing(self):
        self.serve("wait")
        client = self.client()
        client.sendall(b"hello")
        self.assertEqual(self.read_exactly(client, 5), b"hello")
        broker, = brokers(self.b)
        with open(f"/proc/{broker}/environ", "rb") as f:
            environ = f.read()
        self.assertNotIn(b"VMA_", environ)
        self.assertNotIn(b"LD_PRELOAD", environ)
        with open(f"/proc/{broker}/status") as f:
            status = dict(line.split(":\t", 1) for line in f if ":\t" in line)
        self.assertEqual(status["NoNewPrivs"].strip(), "1")
        allowed = sum(1 << n for n in (10, 12, 13, 21, 38, 39))  # linux/capability.h
        self.assertEqual(int(status["CapEff"], 16) & ~allowed, 0)
        for fd in range(3):
            self.assertEqual(os.stat(f"/proc/{broker}/fd/{fd}").st_rdev, os.stat("/dev/null").st_rdev)


if __name__ == "__main__":
    case.main()
