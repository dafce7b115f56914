"""Several rings of one interface (VMA_RING_ALLOCATION_LOGIC_*): which sockets share one, by what vma_stats says of each socket and by
the frames that each ring has had; and that nothing comes twice or not at all."""

import os
import random
import re
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import viewed
from netns import eventually
from viewed import PORT

ECHOES = 10
CYCLE = bytes(range(251)) * 5
GROUP = "239.7.7.7"


def piece_of(number):
    return CYCLE[number * 1000 % 251:][:1000]


class Case(viewed.Viewed):
    def setUp(self):
        super().setUp()
        self.introduce(self.b, self.a)
        self.introduce(self.a, self.b)

    def begin(self, script, *words, **env):
        if script is None:  # each test has its own
            return
        super().begin(script, *words, **env)

    def threads(self, kind, wait, threads, sockets, *rest, logic=20, receiving=None, **env):
        self.begin("ring_threads.py", kind, wait, threads, sockets, *rest, PEER=self.a.ip, VMA_RING_ALLOCATION_LOGIC_TX=str(logic),
                   VMA_RING_ALLOCATION_LOGIC_RX=str(logic if receiving is None else receiving), **env)

    def end(self):
        self.program.stdin.close()
        self.assertEqual(self.program.wait(20), 0, self.program.out)

    def echo_all(self, threads, sockets):
        for i in range(threads * sockets):
            viewed.echoes(self, PORT + i, ECHOES)

    def rings_of(self, threads, sockets):
        """Of each thread the rings of each of its sockets, and how many frames each ring has had and sent."""
        process, by_fd = self.json()
        of = [[by_fd[self.fds[f"{t}_{s}"]]["rings"] for s in range(sockets)] for t in range(threads)]
        for thread in of:
            for rings in thread:
                self.assertEqual(len(rings), 1, of)
        return [[rings[0] for rings in thread] for thread in of], [(r["rx_frames"], r["tx_frames"])
                                                                    for r in process["rings"]]

    def each_its_own(self, of, frames, per_thread):
        """Every thread has a ring that is nobody else's, by which all of its datagrams went."""
        for thread in of:
            self.assertEqual(len(set(thread)), 1, of)
            self.assertEqual(frames[thread[0]], (per_thread, per_thread), frames)
        self.assertEqual(len({thread[0] for thread in of}), len(of), of)


class Threads(Case):
    def test_of_a_thread(self):
        """VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20, whatever a thread waits by."""
        for wait, threads, sockets in (("recv", 3, 1), ("poll", 2, 2), ("epoll", 2, 2)):
            with self.subTest(wait=wait):
                self.threads("udp", wait, threads, sockets)
                self.echo_all(threads, sockets)
                self.each_its_own(*self.rings_of(threads, sockets), sockets * ECHOES)
                self.end()

    def test_limit(self):
        """VMA_RING_LIMIT_PER_INTERFACE: four threads in turn on the two rings that there may be."""
        self.threads("udp", "recv", 4, 1, VMA_RING_LIMIT_PER_INTERFACE="2")
        self.echo_all(4, 1)
        of, frames = self.rings_of(4, 1)
        self.assertEqual(([ring for (ring,) in of], frames), ([0, 1, 0, 1], [(2 * ECHOES, 2 * ECHOES)] * 2))
        self.end()

    def echo_on(self, connections):
        for c in connections:
            c.settimeout(20)
            self.addCleanup(c.close)
            for i in range(ECHOES):
                c.sendall(b"%03d" % i)
                self.assertEqual(c.recv(100), b"%03d" % i)

    def test_connections(self):
        """Each thread's on its own ring; accepted ones are on that of their listener."""
        with self.a.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((self.a.ip, PORT))
            listener.listen(8)
            listener.settimeout(20)
            self.threads("connect", "epoll", 2, 2)
            self.echo_on([listener.accept()[0] for _ in range(4)])
        of, frames = self.rings_of(2, 2)
        self.assertEqual(of, [[0, 0], [1, 1]])
        for received, sent in frames:
            self.assertGreaterEqual(min(received, sent), 2 * ECHOES)
        self.end()
        program = self.python(self.b, "ring_threads.py", self.b.ip, PORT, "accept", "poll", 1, 2, preload=True, start=True,
                              stdin=subprocess.PIPE, env={"VMA_STATS_SHMEM_DIR": self.folder, "VMA_RING_ALLOCATION_LOGIC_RX": "10",
                                                          "VMA_LISTEN_EAGER": "1"})
        program.expect("(?m)^listening$", 20)
        connections = [self.a.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(2)]
        for c in connections:
            c.settimeout(20)
            c.connect((self.b.ip, PORT))
        self.pid = int(program.expect(r"ready (\d+)", timeout=20).group(1))
        self.echo_on(connections)
        self.fds = {name: int(fd) for name, fd in re.findall(r"(?m)^(\w+) (\d+)$", program.out)}
        _, by_fd = self.json()
        self.assertEqual({tuple(by_fd[self.fds[name]]["rings"]) for name in ("listener", "0_0", "0_1")}, {(0,)})
        program.stdin.close()
        self.assertEqual(program.wait(20), 0, program.out)

    def test_group(self):
        """Every member gets each datagram once, whichever rings have the group, and the kernel none of them."""
        self.threads("group", "poll", 3, 2)
        with self.a.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer, self.past_the_kernel(self.b, 6 * 200):
            peer.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.a.ip))
            for i in range(200):
                peer.sendto(b"%d" % i, (GROUP, PORT))
            peer.sendto(b"end", (GROUP, PORT))
            eventually(lambda: self.program.out.count("got ") == 6, 20)
        got = dict(re.findall(r"(?m)^got (\w+) (\d+)$", self.program.out))
        self.assertEqual(got, {f"{t}_{s}": "201" for t in range(3) for s in range(2)})
        process, _ = self.json()
        self.assertEqual([r["rx_frames"] for r in process["rings"]], [201] * 3)
        self.end()


class Others(Case):
    def test_by_default(self):
        self.threads("udp", "poll", 2, 2, logic=0)
        self.echo_all(2, 2)
        of, frames = self.rings_of(2, 2)
        self.assertEqual((of, frames), ([[0, 0], [0, 0]], [(4 * ECHOES, 4 * ECHOES)]))
        self.end()

    def test_of_a_socket(self):
        self.threads("udp", "epoll", 2, 2, logic=10)
        self.echo_all(2, 2)
        of, frames = self.rings_of(2, 2)
        self.assertEqual((of, frames), ([[0, 1], [2, 3]], [(ECHOES, ECHOES)] * 4))
        self.end()

    def test_of_a_core(self):
        """By the CPU that a thread is bound to (30), or that it is pinned to then (31)."""
        cpus = len(os.sched_getaffinity(0))
        threads = 2 * cpus
        for logic, rest in ((30, ["pin"]), (31, [])):
            self.threads("udp", "recv", threads, 1, *rest, logic=logic)
            self.echo_all(threads, 1)
            of, frames = self.rings_of(threads, 1)
            self.assertEqual([ring for (ring,) in of], [t % cpus for t in range(threads)])
            self.assertEqual(frames, [(2 * ECHOES, 2 * ECHOES)] * cpus)
            self.assertEqual([self.fds[f"cpus_{t}"] for t in range(threads)], [1] * threads)
            self.end()

    def test_of_a_user(self):
        """SO_VMA_RING_ALLOC_LOGIC: sockets of two threads that name the same users."""
        self.threads("udp", "poll", 2, 2, "user", logic=0)
        self.echo_all(2, 2)
        of, frames = self.rings_of(2, 2)
        self.assertEqual((of, frames), ([[0, 1], [0, 1]], [(2 * ECHOES, 2 * ECHOES)] * 2))
        self.end()

    def test_sending_alone(self):
        """VMA_RING_ALLOCATION_LOGIC_TX=20: received by the ring of the interface, sent by one of each thread."""
        self.threads("udp", "recv", 2, 1, receiving=0)
        self.echo_all(2, 1)
        of, frames = self.rings_of(2, 1)
        self.assertEqual((of, frames), ([[0], [0]], [(2 * ECHOES, 0), (0, ECHOES), (0, ECHOES)]))
        self.end()


class Turns(Case):
    """A socket that threads use one after the other, with a ring for each of them. What comes is under way whenever it moves."""

    WINDOW = 48  # datagrams, or pieces of a stream
    connects, others = None, ()  # peers, when the program listens

    def turns(self, kind, threads=3, ratio="5", logic="20", receiving=None, **env):
        self.sent = self.back = 0
        self.begin("ring_turns.py", kind, threads, **{
            "VMA_RING_ALLOCATION_LOGIC_TX": logic, "VMA_RING_ALLOCATION_LOGIC_RX": logic if receiving is None else receiving,
            "VMA_RING_MIGRATION_RATIO_RX": ratio, "VMA_RING_MIGRATION_RATIO_TX": ratio, **env})

    def peer(self):
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(20)
        return peer

    def next_turn(self):
        self.program.stdin.write(b"\n")
        self.program.stdin.flush()

    def talk(self, peer, done=None, count=500):
        """Numbered datagrams to the program, `count` of them or until `done`: they come back in order, each of them."""
        begun = self.sent
        while not done() if done else self.sent == begun:
            for _ in range(count):
                peer.sendto(b"%d" % self.sent, (self.b.ip, PORT))
                self.sent += 1
                if self.sent - self.back == self.WINDOW:
                    self.came_back(peer)
        while self.back < self.sent:
            self.came_back(peer)

    def came_back(self, peer):
        self.assertEqual(peer.recv(100), b"%d" % self.back, self.program.out)
        self.back += 1

    def started(self):
        if self.connects:
            self.program.expect("(?m)^listening$", 20)
            for peer in (self.connects, *self.others):
                peer.connect((self.b.ip, PORT))
            self.connects, self.others = None, ()

    def connected(self, kind, **env):
        """The peer of a connection that the program accepts or makes."""
        if kind == "connect":
            with self.a.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.bind((self.a.ip, PORT))
                listener.listen(1)
                listener.settimeout(20)
                self.turns(kind, PEER=self.a.ip, **env)
                peer = listener.accept()[0]
        else:
            peer = self.connects = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
            peer.settimeout(20)
            self.turns(kind, VMA_LISTEN_EAGER="1", **env)
        self.addCleanup(peer.close)
        peer.settimeout(20)
        return peer

    def stream(self, peer, done=None, pieces=200):
        """As talk(): of a stream of ring_turns.py."""
        begun = self.sent
        while not done() if done else self.sent == begun:
            for _ in range(pieces):
                peer.sendall(piece_of(self.sent))
                self.sent += 1
                if self.sent - self.back == self.WINDOW:
                    self.text_came_back(peer)
        while self.back < self.sent:
            self.text_came_back(peer)

    @staticmethod
    def received(peer):
        got = b""
        while len(got) < 1000 and (more := peer.recv(1000 - len(got))):
            got += more
        return got

    def text_came_back(self, peer):
        self.assertEqual(self.received(peer), piece_of(self.back), self.program.out)
        self.back += 1

    def shown(self):
        """Of the socket its rings and migrations; of each ring the frames that it has had and sent."""
        process, by_fd = self.json()
        s = by_fd[self.fds["0_0"]]
        c = s["counters"]
        return s["rings"], c["rx_migrations"], c["tx_migrations"], c["migrations_refused"], [
            (r["rx_frames"], r["tx_frames"]) for r in process["rings"]]

    def moved(self, times):
        """Has it, both ways, so often?"""
        return lambda: self.shown()[1] == times

    def test_datagrams(self):
        """VMA_RING_MIGRATION_RATIO_RX: none is lost, late or with the kernel, and each thread's went by a ring of its own."""
        self.turns("udp")
        peer = self.peer()
        self.talk(peer)
        with self.past_the_kernel(self.b, 3 * 500):
            for moves in range(1, 5):
                self.next_turn()
                self.talk(peer, self.moved(moves))
        rings, received, _, refused, frames = self.shown()
        self.assertEqual((len(rings), received, refused), (1, 4, 0))
        self.assertGreater(len(frames), 1)
        self.assertEqual((sum(f[0] for f in frames), sum(f[1] for f in frames)), (self.sent, self.sent))
        self.end()


    def stay(self, wanted, *words, **env):
        """Two turns: `wanted` of what is shown."""
        self.turns(*words, **env)
        peer = self.peer()
        for turn in range(3):
            # The thread before notices with what comes next.
            self.talk(peer, lambda t=turn: f"turn {t}\n" in self.program.out)
            self.talk(peer)
            if turn < 2:
                self.next_turn()
        shown = self.shown()
        self.assertEqual(wanted(*shown), True, shown)
        self.end()

    def test_never(self):
        """VMA_RING_MIGRATION_RATIO_RX=-1 VMA_RING_MIGRATION_RATIO_TX=-1, and a ratio that is not reached."""
        for ratio in ("-1", "1000"):
            with self.subTest(ratio=ratio):
                self.stay(lambda rings, *rest: (rings, *rest[:3], len(rest[3])) == ([0], 0, 0, 0, 1), "udp", ratio=ratio)

    def test_sending(self):
        """VMA_RING_MIGRATION_RATIO_TX: what is received stays where it is."""
        def wanted(rings, received, sent, refused, frames):
            return (rings, received, sent, refused) == ([0], 0, 2, 0) and frames[0][0] == self.sent and \
                len(frames) == 3 and all(f[1] >= 400 for f in frames) and sum(f[1] for f in frames) == self.sent
        self.stay(wanted, "udp", VMA_RING_MIGRATION_RATIO_RX="-1")

    def test_that_cannot(self):
        """Groups are copied to a ring, not steered: their members stay, and say so."""
        self.stay(lambda rings, received, sent, refused, frames: (rings, received) == ([0], 0) and refused > 1, "member")

    def moves_of(self, kind, count):
        peer = self.connected(kind)
        self.stream(peer)
        for moves in range(1, count + 1):
            self.next_turn()
            self.stream(peer, self.moved(moves))
        rings, received, sent, refused, frames = self.shown()
        self.assertEqual((len(rings), received, sent, refused), (1, count, 0, 0))
        self.assertGreater(len(frames), 1)
        for f in frames:
            self.assertGreater(min(f), 0, frames)
        return peer

    def test_connection(self):
        """VMA_RING_MIGRATION_RATIO_RX: every byte, both ways, of one that is accepted, also while another thread sends by it, and of
        one that is made."""
        for kind in ("accept", "split", "connect"):
            with self.subTest(kind=kind):
                peer = self.moves_of(kind, 4)
                self.end()
                self.assertEqual(peer.recv(1), b"")

    def test_pool(self):
        """Connections that a pool of threads serves in turns, whoever is free: they move all the time, and every byte comes back."""
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", file=sys.stderr)
        self.connects = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        peers = [self.connects] + [self.a.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(7)]
        for peer in peers:
            self.addCleanup(peer.close)
            peer.settimeout(20)
        self.others = peers[1:]
        self.begin("ring_pool.py", 4, len(peers), seed, VMA_LISTEN_EAGER="1", **dict.fromkeys(
            ("VMA_RING_MIGRATION_RATIO_RX", "VMA_RING_MIGRATION_RATIO_TX"), "1"), **dict.fromkeys(
                ("VMA_RING_ALLOCATION_LOGIC_RX", "VMA_RING_ALLOCATION_LOGIC_TX"), "20"))
        rng, sent, back = random.Random(seed), [0] * len(peers), [0] * len(peers)
        for _ in range(4000):
            i = rng.randrange(len(peers))
            peers[i].sendall(piece_of(sent[i]))
            sent[i] += 1
            while sent[i] - back[i] > rng.randint(0, 20):
                self.assertEqual(self.received(peers[i]), piece_of(back[i]))
                back[i] += 1
        for i, peer in enumerate(peers):
            while back[i] < sent[i]:
                self.assertEqual(self.received(peer), piece_of(back[i]))
                back[i] += 1
        _, by_fd = self.json()
        self.assertGreater(sum(s["counters"]["rx_migrations"] for s in by_fd.values() if "counters" in s), len(peers))
        self.end()

    def test_rescue(self):
        """What a program that is killed had written after a move arrives: its broker finds the connection in the ring that has it."""
        peer = self.connected("accept", DIE="1")
        self.stream(peer)
        for moves in (1, 2, 3):
            self.next_turn()
            self.stream(peer, self.moved(moves))
        self.program.stdin.close()
        written = int(self.program.expect(r"written (\d+)", timeout=20).group(1))
        self.assertEqual(self.program.wait(20), -9, self.program.out)
        self.assertGreater(written, 60000)
        got = bytearray()
        while data := peer.recv(1 << 16):
            got += data
        pieces = written // 1000 + 1
        self.assertEqual(got, b"".join(map(piece_of, range(pieces)))[:written])

    def test_never_of_a_connection(self):
        peer = self.connected("accept", ratio="-1")
        for turn in range(3):
            self.stream(peer, lambda t=turn: f"turn {t}\n" in self.program.out)
            self.stream(peer)
            self.next_turn()
        self.assertEqual(self.shown()[:4], ([0], 0, 0, 0))
        self.end()


if __name__ == "__main__":
    case.main()
