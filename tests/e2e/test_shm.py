"""Two processes of one host, both preloaded: their connections go by shared memory. Unmodified programs, one side plain,
processes that are killed, that fork, exec and pass the connection on, ordinary users without any capability.

The oracle: the kernel's count of received TCP segments in the namespace stands nearly still while the bytes move.
"""

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import nginx
import programs
import sockperf
from netns import Loopback, binary, eventually, no_capabilities, preload_env

LO = "127.0.0.1"
ports = itertools.count(21000)
# Segments of 4000 messages there and back by the kernel are 8000. An attempt to move that comes before the server's name is
# there is repeated after 64 calls, then after 512, then after 4096; a busy machine sees some of these.
MOVED = 6000
ENDS = {"both": (True, True), "client": (True, False), "server": (False, True)}


VERSION = 2  # src/dev/shm/layout.h


def door(port, slot):
    return f"\0vma.shm.{VERSION}.tcp.{port}.{slot}"


def mapped(pid):
    """Mappings of memory that the process shares with neighbours."""
    with open(f"/proc/{pid}/maps") as maps:
        return sum("memfd:vma-pair" in line for line in maps)


def quiet(**variables):
    return preload_env(**{"VMA_TRACELEVEL": "warning", "VMA_SHM_AFTER": 8} | variables)


class Stranger:
    """A process of another user that speaks the protocol of src/dev/shm/handshake.h and engine/shm_peers.h well."""

    RING = 1 << 20
    OFFER, REFUSE, ACCEPT, COMMIT, GO, BACK = range(1, 7)

    def __init__(self, connected):
        self.socket = connected
        with open(os.memfd_create("pair", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb", buffering=0) as memory:
            total = 4096 + 2 * self.RING
            os.posix_fallocate(memory.fileno(), 0, total)
            memory.write(struct.pack("<QIIQ", 0x52494E474D53484C, VERSION, self.RING, total))
            fcntl.fcntl(memory, 1033, 1 | 2 | 4)  # F_ADD_SEALS: seal, shrink, grow
            bell = ctypes.CDLL(None).timerfd_create(1, os.O_NONBLOCK | os.O_CLOEXEC)
            cookie = struct.unpack("<Q", self.socket.getsockopt(socket.SOL_SOCKET, 71, 8))[0]  # SO_NETNS_COOKIE
            hello = struct.pack("<QIIQQQII", 0x564D4173686D68, VERSION, 1, 47, 11, cookie, 0, 0)
            socket.send_fds(self.socket, [hello], [memory.fileno(), bell])
            os.close(bell)
        welcome, fds = socket.recv_fds(self.socket, 100, 2)[:2]
        for fd in fds:
            os.close(fd)
        self.welcome = struct.unpack("<QIIQQQII", welcome)[2] == 2

    def say(self, word, mine, other, flags=0):
        """`mine`, `other`: (address as a number, port), ends of a connection."""
        self.socket.send(struct.pack("<QIIIIHHIIIIxxxxQ", 0x564D4170656572, word, flags, mine[0], other[0], mine[1], other[1],
                                     1, 65536, 0, 0, 0))

    def hear(self):
        return struct.unpack_from("<II", self.socket.recv(100), 8)  # word, flags


class OneHost(programs.ProgramCase):
    letters = "ab"  # everything happens in a

    def segments(self):
        return self.a.counters("Tcp")["InSegs"]

    def talk(self, *words, address=LO, listen=None, client=True, server=True, prefix=(), server_prefix=None, **variables):
        """tests/support/shm_talk.py as server and client; the segments that the kernel saw. Other users may read all of it."""
        port = next(ports)
        script = shutil.copy(os.path.join(case.SUPPORT, "shm_talk.py"), self.folder)
        env = self.readable(quiet(**variables))

        def line(role, address):
            return ["/usr/bin/python3", "-B", script, role, address, port, *words]

        serve = self.a.start(line("serve", listen or address), env=env if server else None,
                             prefix=prefix if server_prefix is None else server_prefix)
        serve.expect("ready")
        before = self.segments()
        done = self.a.run(line("call", address), env=env if client else None, prefix=prefix)
        dies = words[1] if words[0] == "die" else None
        self.assertEqual((done.rc, serve.wait(20)), (-9 if dies == "client" else 0, -9 if dies == "server" else 0),
                         done.out + serve.out)
        return self.segments() - before


class Smoke(OneHost):
    def test_messages_leave_the_kernel(self):
        for name, (client, server) in ENDS.items():
            with self.subTest(ends=name):
                seen = self.talk("echo", 4000, 64, client=client, server=server)
                print(f"{name}: {seen} segments of the kernel", flush=True)
                if name == "both":
                    self.assertLess(seen, MOVED)
                else:
                    self.assertGreater(seen, 4000)

    def test_bulk(self):
        seen = self.talk("echo", 200, 1000000)
        # Without shared memory 7000; 150 as a rule, and 1075 were seen on a busy machine, where the two find each other late.
        self.assertLess(seen, 3500)

    def test_switched_off(self):
        self.assertGreater(self.talk("echo", 2000, 64, VMA_SHM_AFTER="0"), 2000)

    def test_without_capabilities(self):
        self.assertLess(self.talk("echo", 4000, 64, prefix=no_capabilities()), MOVED)

    def test_own_address(self):
        self.assertLess(self.talk("echo", 4000, 64, address=self.a.ip), MOVED)

    def test_listener_of_every_address(self):
        """Its process may have a ring for other addresses, or none."""
        for prefix in ((), no_capabilities()):
            self.assertLess(self.talk("echo", 4000, 64, listen="0.0.0.0", prefix=prefix), MOVED, prefix)

    def test_users(self):
        """Ordinary users without any capability, the same one and two of them."""
        nobody, daemon = programs.as_user("nobody", "nogroup", ()), programs.as_user("daemon", "daemon", ())
        for name, prefix, server_prefix in (("same", nobody, nobody), ("two", nobody, daemon), ("root serves", nobody, ())):
            with self.subTest(users=name):
                self.assertLess(self.talk("echo", 4000, 64, prefix=prefix, server_prefix=server_prefix), MOVED)
        self.talk("fork", "server", 300, prefix=nobody, server_prefix=daemon)

    def test_seen_from_outside(self):
        """vma_stats: over which ring, or why not."""
        port = next(ports)
        pages = {"serve": self.path("serve"), "call": self.path("call")}
        started = {}
        for role, page in pages.items():
            os.mkdir(page)
            started[role] = self.python(self.a, "shm_talk.py", role, LO, port, "echo", 10**8, 64, start=True,
                                        env=quiet(VMA_STATS_SHMEM_DIR=page))
            if role == "serve":
                started[role].expect("ready")

        def explained(page):
            return self.a.run([binary("vma_stats"), "-k", page, "explain"], timeout=20).out

        for page in pages.values():
            eventually(lambda page=page: "shm ring" in explained(page), 10)
            self.assertRegex(explained(page), rf"tcp +127\.0\.0\.1:\d+ +-> 127\.0\.0\.1:\d+ +offloaded: shm ring on lo")
            (process,) = json.loads(self.a.run([binary("vma_stats"), "-k", page, "--json"], timeout=20).out)["processes"]
            (index,) = [i for i, ring in enumerate(process["rings"]) if ring["kind"] == "shm"]
            ring = process["rings"][index]
            self.assertEqual((ring["interface"], ring["open"], ring["drops"], ring["tcp_connections"]), ("lo", True, {}, 1))
            self.assertTrue(ring["rx_frames"] and ring["tx_frames"] and ring["tcp_segments_in"], ring)
            (connection,) = [s for s in process["sockets"] if s["rings"] == [index] and s["tcp_state"] == "ESTABLISHED"]
            self.assertGreater(connection["tcp"]["bytes_received"], 0)
            # Every frame of it decodes.
            file = self.path("capture")
            done = self.a.run([binary("vma_capture"), "-k", page, "-p", str(process["pid"]), "-w", file, "-c", "200"], timeout=30)
            self.assertEqual(done.rc, 0, done.out)
            shown = self.a.run(["tshark", "-r", file, "-Y", f"tcp.port=={port} && ip.addr=={LO} && !_ws.malformed && !_ws.short", "-T",
                                "fields", "-e", "frame.interface_name"], timeout=60)
            self.assertEqual(shown.out.split().count("lo"), 200, shown.out)
        # A plain end: it stays with the kernel, and says why.
        plain = self.python(self.a, "shm_talk.py", "serve", LO, port + 1000, "echo", 10**8, 64, start=True)
        plain.expect("ready")
        page = self.path("alone")
        os.mkdir(page)
        self.python(self.a, "shm_talk.py", "call", LO, port + 1000, "echo", 10**8, 64, start=True,
                    env=quiet(VMA_STATS_SHMEM_DIR=page))
        self.assertTrue(eventually(lambda: "kernel: loopback" in explained(page), 10), explained(page))

    def test_another_program_takes_over(self):
        for who in ("server", "client"):
            with self.subTest(passes=who):
                self.talk("pass", who, 300)
                self.talk("pass", who, 300, prefix=no_capabilities())

    def test_a_child_takes_over(self):
        for who in ("server", "client"):
            with self.subTest(forks=who):
                self.talk("fork", who, 300)
                self.talk("fork", who, 300, prefix=no_capabilities())

    def test_exec_keeps_the_connection(self):
        self.talk("exec", "client", 300)
        self.talk("exec", "server", 300, prefix=no_capabilities())

    def test_death(self):
        for who in ("server", "client"):
            with self.subTest(dies=who):
                self.talk("die", who, 500)

    def test_another_user_says_it_is_the_other_end(self):
        """It knows the connection and speaks well: refused whatever it says, and the connection goes on."""
        port = next(ports)
        nobody = programs.as_user("nobody", "nogroup", ())
        script = shutil.copy(os.path.join(case.SUPPORT, "shm_talk.py"), self.folder)
        line = ["/usr/bin/python3", "-B", script]
        serve = self.a.start([*line, "serve", LO, port, "echo", 20000, 64], env=self.readable(quiet()), prefix=nobody)
        serve.expect("ready")
        call = self.a.start([*line, "call", LO, port, "echo", 20000, 64], prefix=nobody)
        connected = eventually(lambda: self.at_door(port, 0), 10)
        self.assertTrue(connected, "the server has no name")
        self.addCleanup(connected.close)
        stranger = Stranger(connected)
        self.assertTrue(stranger.welcome)
        (client,) = re.findall(rf": 0100007F:(\w+) 0100007F:{port:04X} 01 ", self.a.read("/proc/thread-self/net/tcp"))
        ends = (0x7F000001, int(client, 16)), (0x7F000001, port)
        stranger.say(stranger.OFFER, *ends)
        self.assertEqual(stranger.hear(), (stranger.REFUSE, 0))
        for word in (stranger.COMMIT, stranger.BACK):
            stranger.say(word, *ends)
        for word in (stranger.GO, stranger.REFUSE):
            stranger.say(word, *ends)
        stranger.say(stranger.ACCEPT, *ends)
        while (answer := stranger.hear())[0] != stranger.REFUSE:
            self.assertEqual(answer, (stranger.BACK, 1))  # nothing here that could move
        self.assertEqual((call.wait(30), serve.wait(30)), (0, 0), call.out + serve.out)

    def at_door(self, port, slot):
        s = self.a.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(5)
        try:
            s.connect(door(port, slot))
        except OSError:
            s.close()
            return None
        return s

    def test_strangers_at_the_door(self):
        """A process that says nonsense to the server's name, and one that sits on the names before the server comes."""
        port = next(ports)
        squatters = [self.a.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        for slot, squatter in enumerate(squatters):
            self.addCleanup(squatter.close)
            squatter.bind(door(port, slot))
            squatter.listen(8)
        serve = self.python(self.a, "shm_talk.py", "serve", LO, port, "echo", 3000, 64, start=True, env=quiet())
        serve.expect("ready")
        call = self.python(self.a, "shm_talk.py", "call", LO, port, "echo", 3000, 64, start=True, env=quiet())

        heard = 0
        for noise in (b"", b"x", b"\0" * 48, os.urandom(48), os.urandom(4000)):
            stranger = eventually(lambda: self.at_door(port, 2), 10) if call.running() else None
            if not stranger:
                break
            heard += 1
            read, write = os.pipe()
            with contextlib.suppress(OSError):
                socket.send_fds(stranger, [noise or b"y"], [read, write])
                stranger.send(noise)
            os.close(read)
            os.close(write)
            stranger.close()
        self.assertGreater(heard, 0, "the server has no name")
        self.assertEqual((call.wait(30), serve.wait(30)), (0, 0), call.out + serve.out)


class Full(OneHost):
    def program(self, argv, port, least):
        """A client of a server that runs: its output, and that few of the segments were the kernel's."""
        before = self.segments()
        done = self.a.run(argv, env=quiet(), timeout=120)
        self.assert_ok(done)
        seen = self.segments() - before
        print(f"{argv[0]} {port}: {seen} segments of the kernel, at least {least} without the ring", flush=True)
        self.assertLess(seen, least / 2, done.out)
        return done.out

    def test_redis(self):
        port = next(ports)
        server = self.a.start(["redis-server", "--bind", LO, "--port", port, "--save", "", "--appendonly", "no", "--dir",
                               self.folder], env=quiet())
        server.expect("Ready to accept connections")
        for options in (["-c", "1"], ["-c", "20"], ["-c", "20", "-P", "16"], ["-c", "5", "-d", "100000", "-n", "2000"]):
            line = ["redis-benchmark", "-h", LO, "-p", port, "-n", "20000", "-t", "set,get", "--csv", *options]
            out = self.program(line, port, 4000)
            self.assertEqual(len(re.findall(r'(?m)^"[SG]ET","[0-9.]+"', out)), 2, out)
        # Its child writes the snapshot while clients are there.
        self.program(["redis-cli", "-h", LO, "-p", port, "BGSAVE"], port, 1000)
        self.program(["redis-benchmark", "-h", LO, "-p", port, "-n", "20000", "-t", "set,get", "--csv"], port, 40000)

    def test_sockperf(self):
        """Ping-pong, under load and throughput, in each way of waiting; nothing lost, twice or out of order."""
        for mode, options in (("pp", {}), ("pp", {"nonblocked": True}), ("pp", {"iomux": "select", "sockets": 5}),
                              ("pp", {"iomux": "poll", "sockets": 5}), ("pp", {"iomux": "epoll", "sockets": 5}),
                              ("ul", {"mps": 20000}), ("tp", {}), ("pp", {"size": 60000})):
            with self.subTest(mode=mode, **options):
                done = sockperf.run_pair(self.a, Loopback(self.a), mode, protocol="tcp", **{"size": 64, **options}, seconds=2,
                                         client_env=quiet(), server_env=quiet())
                self.assertEqual((done.client_rc, done.server_rc), (0, 0), done.text)
                self.assertGreater(done.received, 0, done.text)
                print(f"{mode} {options}: {done.received} messages, {done.kernel_in} segments of the kernel", flush=True)
                self.assertLess(done.kernel_in, done.received / 2 + MOVED, done.text)
                if mode == "pp":
                    self.assertEqual((done.dropped, done.duplicated, done.out_of_order), (0, 0, 0), done.text)

    def test_nginx(self):
        """Large files by curl, with and without sendfile, then many clients that keep their connections."""
        os.mkdir(self.path("www"))
        size = 256 << 20
        sha = programs.seeded_file(self.path("www/large"), size)
        self.write("www/small", "x" * 1000)
        for more in ("sendfile on;", "sendfile off; output_buffers 2 64k;"):
            with self.subTest(more=more):
                port = next(ports)
                conf = self.write("nginx.conf", nginx.configuration(self.folder, LO, port, more=more))
                server = self.a.start(["nginx", "-p", self.folder, "-c", conf], env=quiet())
                self.a.wait_bound("tcp", port, process=server)
                before = self.segments()
                fetch = f"{' '.join(f'{k}={v}' for k, v in quiet().items())} curl -sS http://{LO}:{port}/large | sha256sum"
                done = self.a.run(["bash", "-o", "pipefail", "-c", fetch], timeout=100)
                self.assertEqual((done.rc, done.out.split()[0]), (0, sha), done.out)
                seen = self.segments() - before
                print(f"{more} {size / done.seconds / 1e6:.0f} MB/s, {seen} segments of the kernel", flush=True)
                if "off" in more:  # sendfile(2) keeps a connection that it began with in the kernel
                    self.assertLess(seen, size / 65536 / 2)
                out = self.program(["wrk", "-t", "1", "-c", "32", "-d", "2s", f"http://{LO}:{port}/small"], port, 10000)
                self.assertNotIn("Socket errors", out)
                self.assertEqual(server.stop(signal.SIGTERM), 0, server.out)

    def test_iperf(self):
        for options in ([], ["-R"], ["-P", "4"], ["--bidir"]):
            with self.subTest(options=options):
                port = next(ports)
                serve = self.a.start(["iperf3", "-s", "-1", "-B", LO, "-p", port], env=quiet())
                self.a.wait_bound("tcp", port, process=serve)
                before = self.segments()
                done = self.a.run(["iperf3", "-c", LO, "-p", port, "-t", 2, "-J", *options], env=quiet(), timeout=60)
                self.assert_ok(done)
                moved = json.loads(done.out[done.out.index("{"):])["end"]["sum_received"]["bytes"]
                seen = self.segments() - before
                print(f"iperf3 {options}: {moved / 2.5e8:.1f} Gbit/s, {seen} segments of the kernel", flush=True)
                self.assertLess(seen, moved / 65536 / 2 + MOVED)
                self.assertEqual(serve.wait(10), 0, serve.out)

    def test_many_generations(self):
        """Nothing is left of processes that came and went, however they went: descriptors and memory of the one that stays."""
        port = next(ports)
        serve = self.python(self.a, "echo_threads.py", LO, port, start=True, env=quiet())
        self.a.wait_bound("tcp", port, process=serve)
        pid = max(self.a.pids())
        shared = set(os.listdir("/dev/shm"))

        def generation(killed):
            call = self.python(self.a, "shm_talk.py", "call", LO, port, "echo", 10**8 if killed else 500, 100, start=True,
                               env=quiet())
            if killed:
                self.assertTrue(eventually(lambda: mapped(pid), 10), "it never shared memory")
                call.send_signal(signal.SIGKILL)
            self.assertEqual(call.wait(20), -9 if killed else 0, call.out)

        def descriptors():
            return len(os.listdir(f"/proc/{pid}/fd"))

        for i in range(4):
            generation(killed=i % 2)
        self.assertTrue(eventually(lambda: mapped(pid) == 0, 10), "memory is left of the first ones")
        before = descriptors()
        for i in range(20):
            generation(killed=i % 2)
        self.assertTrue(eventually(lambda: mapped(pid) == 0, 10), f"{mapped(pid)} mappings are left")
        self.assertTrue(eventually(lambda: descriptors() <= before, 10), f"{before} descriptors, then {descriptors()}")
        self.assertEqual(set(os.listdir("/dev/shm")) - shared, set())


if __name__ == "__main__":
    del OneHost
    case.main()
