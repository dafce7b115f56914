"""vmad of a host (vmad --listen): programs that never had a capability get rings from it, for their own sockets; who may not
write to its socket stays on the kernel and is told."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
import test_broker_drop as drops
from host_broker import GAMES, NOBODY, SOCKET, HostBroker
from netns import binary, eventually

# A process that exec keeps the number of: what systemd does for a socket unit. argv: PATH PROGRAM...
PASSES_A_SOCKET = """import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
s.listen()
if s.fileno() != 3:
    os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
DAEMON = 1  # a user
NOT_SERVED = "the broker of this host does not serve this process"


class HostCase(drops.DropCase):
    def start(self, *words, command=()):
        self.host = HostBroker(self.b, *words, command=command)

    def expect_news(self, process, before, pattern):
        """In what it has written since."""
        self.assertTrue(eventually(lambda: re.search(pattern, process.out[before:]), 10), process.out[before:])

    def expect_no_capability(self, program):
        found = self.threads(program)
        self.assertTrue(found and all((user, caps) == (NOBODY, 0) for _, user, caps, _ in found), program.out)


    def expect_sockperf(self, prefix=()):
        """Server and client of sockperf where the programs of this case are, each against the kernel's in a."""
        env = self.copied()
        for number, (protocol, name, counter, options) in enumerate((("tcp", "Tcp", "InSegs", ["--tcp"]), ("udp", "Udp", "InDatagrams", []))):
            port = self.port + 6 + number
            server = self.b.start(["sockperf", "sr", "-i", self.b.ip, "-p", port, *options], env=env, prefix=prefix)
            self.b.wait_bound(protocol, port, process=server)
            peer = self.a.start(["sockperf", "sr", "-i", self.peer_ip(), "-p", port, *options])
            self.a.wait_bound(protocol, port)
            for space, ip, how in ((self.a, self.b.ip, {}), (self.b, self.peer_ip(), {"env": env, "prefix": prefix})):
                before = self.b.counters(name)[counter]
                done = space.run(["sockperf", "pp", "-i", ip, "-p", port, "-t", "1", *options], **how)
                self.assertGreater(sockperf.parse("pp", done.rc, done.out, 0, "").answers or 0, 200, done.out + server.out)
                self.assertLess(self.b.counters(name)[counter] - before, case.SLACK, f"{protocol} at {ip} is the kernel's\n{done.out}{server.out}")
            for process in (server, peer):
                self.assertEqual(process.stop(signal.SIGINT, 10), 0, process.out)


# A user's process that gives vmad descriptors which cannot be closed for as long as it likes: of connections whose peer does not read.
# argv: SOCKET ADDRESS PORT WAY.  WAY door: in place of a session; session: with a request; unread: left behind in a socket.
HOLDS_UP = """import array, socket, struct, sys, threading
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.connect(sys.argv[1])


def tell(s, what):
    fds = array.array("i", [what.fileno()])
    s.sendmsg([b"x" * 64], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def stuck():
    s = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    s.setblocking(False)
    try:
        while True:
            s.send(b"x" * 65536)
    except BlockingIOError:
        return s


def session():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tell(door, theirs)
    return ours


try:
    for _ in range(3):
        s = stuck()
        on = door if sys.argv[4] == "door" else session()
        for _ in range(1 if sys.argv[4] != "unread" else 3):
            tell(on, s)
        # Where vmad was the quicker it is this close that waits.
        threading.Thread(target=s.close, daemon=True).start()
        if sys.argv[4] == "unread":
            threading.Thread(target=on.close, daemon=True).start()
except OSError as error:
    print(error)
print("told", flush=True)
sys.stdin.readline()
"""


class Sockperf(HostCase):
    def test_a_user_without_any_capability(self):
        self.start("--group", "games")
        self.expect_sockperf(self.host.user())

    def test_privileges_that_can_never_come(self):
        self.start("--group", "games")
        self.expect_sockperf(self.host.user(more=["--no-new-privs"]))


class Rootless(HostCase):
    def test_a_user_without_any_capability(self):
        self.start("--group", "games")
        program = self.program(self.host.user())
        self.expect_no_capability(program)
        self.every_way(program, listened=False)
        self.assertEqual(self.brokers(), [])
        # Without the daemon what it has goes on, and what it opens from now on is the kernel's.
        old = self.client(self.port + 2)
        self.expect_offloaded(program, old)
        self.assertEqual(self.host.kill(signal.SIGTERM), -signal.SIGTERM, self.host.process.out)
        self.expect_offloaded(program, old)
        self.tell(program, "listen", self.port + 3)
        self.expect_kernel(program, self.client(self.port + 3))

    def test_a_daemon_that_is_started_again(self):
        self.start("--group", "games")
        program = self.program(self.host.user())
        self.tell(program, "listen", self.port + 4)
        old, out = self.client(self.port + 4), self.accept_from(program, self.port + 5)
        for _ in range(2):
            before = len(program.out)
            self.host.again(program.pid, "--group", "games")
            self.expect_news(program, before, "goes on for this process: 1 rings, [1-9] listeners")
            self.expect_offloaded(program, old)
            self.expect_offloaded(program, out)
        self.every_way(program, listened=False)
        self.expect_offloaded(program, self.client(self.port + 4))
        # It rescues, too: the peer sees an end, not a reset.
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5), -signal.SIGKILL)
        self.assertEqual(old.recv(1), b"")
        self.assertEqual(out.recv(1), b"")

    def test_privileges_that_can_never_come(self):
        """PR_SET_NO_NEW_PRIVS, as services and containers have it."""
        self.start("--group", "games")
        program = self.program(self.host.user(more=["--no-new-privs"]))
        self.every_way(program, listened=False)

    def test_a_container(self):
        """Root of a user namespace, with mounts and process numbers of its own, on the host's network: all its capabilities count
        nothing there. It has the daemon's socket mounted."""
        self.start("--group", "games")
        box = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        program = self.program([*self.host.user(), *box])
        self.every_way(program, listened=False)

    def test_a_socket_that_is_passed(self):
        self.start(command=["/usr/bin/python3", "-c", PASSES_A_SOCKET, SOCKET])
        self.assertEqual(os.stat(f"/proc/{self.host.process.pid}/root{SOCKET}").st_mode & 0o777, 0o666)
        self.every_way(self.program(self.host.user(groups=())), listened=False)

    def test_the_policy(self):
        """By interface, port and rate; read again at SIGHUP; what is wrong with it is told, and changes nothing."""
        policy = os.path.join(self.folder, "policy")

        def says(text):
            with open(policy, "w", encoding="ascii") as f:
                f.write(text)

        def reloaded(text, expected):
            says(text)
            before = len(self.host.process.out)
            self.host.process.send_signal(signal.SIGHUP)
            self.expect_news(self.host.process, before, expected)

        says(f"group games  interface {self.b.dev}  port {self.port}-{self.port + 1}  # trade\nany deny\n")
        self.start("--group", "games", "--policy", policy)
        program = self.program(self.host.user())
        self.tell(program, "listen", self.port)
        self.expect_offloaded(program, self.client(self.port))
        self.tell(program, "listen", self.port + 2)
        self.expect_kernel(program, self.client(self.port + 2))
        self.host.process.expect(rf"process {program.pid} of user {NOBODY}: the policy denies it flows of port {self.port + 2}")
        self.assertIn("broker_denied: ", self.explain())
        reloaded("group games interface eth0,\n", r"policy:1: interface \"eth0,\": names or patterns with commas")
        self.tell(program, "listen", self.port + 1)
        self.expect_offloaded(program, self.client(self.port + 1))
        reloaded("group games flows 0\n", "the policy has been read again")
        self.tell(program, "listen", self.port + 3)
        self.expect_kernel(program, self.client(self.port + 3))
        reloaded("group games interface other*\n", "the policy has been read again")
        second = self.program(self.host.user())
        self.tell(second, "listen", self.port + 4)
        self.expect_kernel(second, self.client(self.port + 4))
        self.host.process.expect(rf"process {second.pid} of user {NOBODY}: the policy denies it a ring on interface {self.b.dev}")

    def test_two_users_with_the_same_ports(self):
        """On one interface: who has bound a port has it, and the policy takes neither's side."""
        policy = os.path.join(self.folder, "policy")
        with open(policy, "w", encoding="ascii") as f:
            f.write(f"group games  interface {self.b.dev}  port {self.port}-{self.port + 9}\n")
        self.start("--group", "games", "--policy", policy)
        first, second = self.program(self.host.user()), self.program(self.host.user(user=DAEMON))
        self.tell(first, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(first, s)
        with self.assertRaisesRegex(AssertionError, "Address already in use"):
            self.tell(second, "bind", self.port)
        self.tell(second, "listen", self.port + 1)
        self.expect_offloaded(second, self.client(self.port + 1))
        self.expect_offloaded(first, s)
        first.kill()
        self.assertEqual(s.recv(1), b"")
        self.tell(second, "listen", self.port)
        self.expect_offloaded(second, self.client(self.port))

    def test_who_holds_it_up(self):
        """vmad has one thread for all: descriptors of one user that cannot be closed do not keep it from serving another."""
        self.start("--group", "games")
        deaf = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(deaf.close)
        deaf.bind((self.a.ip, self.port + 9))
        deaf.listen(100)
        for number, way in enumerate(("door", "session", "unread")):
            with self.subTest(way=way):
                crook = self.b.start(["/usr/bin/python3", "-c", HOLDS_UP, SOCKET, self.a.ip, self.port + 9, way],
                                     prefix=self.host.user(user=DAEMON), stdin=subprocess.PIPE)
                crook.expect("told")
                program = self.program(self.host.user())
                self.tell(program, "listen", self.port + number)
                self.expect_offloaded(program, self.client(self.port + number))
                program.kill()
                crook.kill()
        self.assertTrue(self.host.process.running(), self.host.process.out)

    def test_a_policy_that_cannot_be_read(self):
        done = self.b.run(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$0" "$@"', binary("vmad"), "--listen",
                           "/run/socket", "--policy", "/nowhere"], timeout=10)
        self.assertEqual(done.rc, 1)
        self.assertIn("/nowhere: No such file or directory", done.out)

    def test_another_clock(self):
        """The program is in a time namespace, the daemon that sees its connection through is not."""
        self.start("--group", "games")
        program = self.program(self.host.user(before=["unshare", "--time", "--monotonic", "8640000", "--fork", "--kill-child"]))
        self.tell(program, "listen", self.port)
        s = self.client(self.port)
        self.expect_offloaded(program, s)
        program.kill()
        self.assertEqual(s.recv(1), b"")

    def test_it_tells_the_peers_of_the_dead(self):
        """Of a program that had privileges and no broker."""
        self.start("--group", "games")
        program = self.program(self.host.user())
        self.tell(program, "listen", self.port)
        alive = self.client(self.port)
        self.expect_offloaded(program, alive)
        dead = self.program(VMA_BROKER="0")
        s = self.accept_from(dead, self.port + 1)
        self.expect_offloaded(dead, s)
        dead.send_signal(signal.SIGKILL)
        self.assertEqual(dead.wait(5), -signal.SIGKILL)
        with self.assertRaises(ConnectionResetError):
            s.recv(1)
        self.expect_offloaded(program, alive)

    def test_it_tells_the_peer_of_what_it_cannot_rescue(self):
        """When it comes to that, the connection's port is somebody else's."""
        self.start("--group", "games")
        program = self.program(self.host.user())
        s = self.accept_from(program, self.port)
        self.expect_offloaded(program, s)
        self.host.process.send_signal(signal.SIGSTOP)
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5), -signal.SIGKILL)
        taken = self.b.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(taken.close)
        taken.bind(s.getpeername())
        self.host.process.send_signal(signal.SIGCONT)
        self.host.process.expect("1 lost")
        with self.assertRaises(ConnectionResetError):
            s.recv(1)

    def test_who_may_not_write_to_the_socket_is_refused(self):
        self.start("--group", "games")
        program = self.program(self.host.user(groups=()))
        self.tell(program, "listen", self.port)
        self.expect_kernel(program, self.client(self.port))
        program.expect(NOT_SERVED + r" \(errno 13\)")

    def test_a_socket_that_is_left_over_is_replaced(self):
        self.start()
        second = self.b.run([*self.host.enter(), binary("vmad"), "--listen"], timeout=10)
        self.assertEqual(second.rc, 1)
        self.assertIn("Address already in use", second.out)
        # It is another process of this mount namespace that keeps it when the daemon is killed.
        holder = self.b.start([*self.host.enter(), "sleep", "60"])
        self.assertTrue(eventually(lambda: os.path.exists(f"/proc/{holder.pid}/root{SOCKET}"), 5))
        self.host.again(holder.pid)
        self.assertEqual(os.stat(f"/proc/{holder.pid}/root{SOCKET}").st_mode & 0o777, 0o600)


class Restarts(HostCase):
    """Full tier: the daemon is killed and started again while bytes go both ways on many connections."""

    connections, restarts = 1000, 8

    def test_no_byte_is_lost(self):
        self.start("--group", "games")
        program = self.program(self.host.user())
        self.tell(program, "listen", self.port)
        clients = [self.client(self.port) for _ in range(self.connections)]
        enough, rounds, failures = threading.Event(), [], []

        def talk():
            chance = random.Random(self.port)
            try:
                while not enough.is_set():
                    sent = [chance.randbytes(chance.randrange(1, 3000)) for _ in clients]
                    for s, data in zip(clients, sent):
                        s.sendall(data)
                    for s, data in zip(clients, sent):
                        back = s.recv(len(data), socket.MSG_WAITALL)
                        if back != data:
                            raise AssertionError(f"{len(back)} of {len(data)} bytes, or others than were sent")
                    rounds.append(len(sent))
            except (OSError, AssertionError) as error:
                failures.append(error)

        talker = threading.Thread(target=talk)
        talker.start()
        for _ in range(self.restarts):
            seen, before = len(rounds), len(program.out)
            self.host.again(program.pid, "--group", "games")
            self.expect_news(program, before, "goes on for this process")
            self.assertTrue(eventually(lambda seen=seen: failures or len(rounds) > seen + 1, 60))
        enough.set()
        talker.join(60)
        self.assertEqual(failures, [])
        for s in clients[::100]:
            self.expect_offloaded(program, s)
        # The last of them rescues.
        program.send_signal(signal.SIGKILL)
        self.assertEqual(program.wait(5), -signal.SIGKILL)
        for s in clients:
            self.assertEqual(s.recv(1), b"")
        print(f"{self.restarts} restarts, {sum(rounds)} questions answered", flush=True)


if __name__ == "__main__":
    case.main()
