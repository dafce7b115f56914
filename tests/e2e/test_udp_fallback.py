"""Refused: what the library cannot have (capabilities, an interface, a port) must not change what a program sees: same
output as on the kernel, and one line that tells the reason where there is one to tell. Garbage: frames that no kernel
sends, at line rate, against a preloaded server that goes on serving."""

import os
import random
import re
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import garbage
import sockperf
from netns import Net, eventually, no_capabilities, preload_env

PORT = 7300


def talk(net, kind, preload, prefix=()):
    """The program's output lines in namespace b while a kernel peer in a asks it twice; and its exit status."""
    a, b = net["a"], net["b"]
    env = preload_env(VMA_TRACELEVEL="warning") if preload else None
    program = b.start(["/usr/bin/python3", "-B", f"{case.SUPPORT}/udp_own_way.py", kind, b.ip, PORT], env=env,
                      prefix=prefix, cpu=1)
    if kind != "loopback":
        program.expect("(?m)^bound$")
        peer = a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        peer.settimeout(0.05)

        def answered(text):
            peer.sendto(text, (b.ip, PORT))
            try:
                return peer.recv(100) == text
            except (TimeoutError, ConnectionRefusedError):
                return False

        for text in (b"one", b"two"):
            if not eventually(lambda: answered(text), 5):
                break
            program.expect(f"echoed {text.decode()}")
        peer.close()
    status = program.wait(15)
    return status, program.out.splitlines()


class Refused(case.NetCase):
    def compare(self, kind, prefix=(), lines=(0, 1), reason=None, net=None):
        """Runs on the kernel and preloaded: same lines and status but for our own, between lines[0] and lines[1] of them."""
        net = net or self.net
        status, plain = talk(net, kind, False, prefix)
        self.assertEqual(status, 0, plain)
        our_status, ours = talk(net, kind, True, prefix)
        extra = list(ours)
        for line in plain:
            self.assertIn(line, extra, ours)
            extra.remove(line)
        self.assertEqual(our_status, 0, ours)
        self.assertGreaterEqual(len(extra), lines[0], "no message tells why it is on the kernel")
        self.assertLessEqual(len(extra), lines[1], extra)
        if reason:
            self.assertRegex("\n".join(extra), re.compile(reason, re.I))

    def test_no_capability(self):
        self.compare("echo", no_capabilities(), (1, 1), "capabilit|CAP_|privilege|permitted")

    def test_no_descriptor_left(self):
        self.compare("echo", ["prlimit", "--nofile=8:8"], (1, 1), "no file descriptor left")

    def test_no_memory_left(self):
        self.compare("echo", ["prlimit", "--as=100000000"], (1, 1), "no memory left")

    def test_port_in_use(self):
        holder = self.b.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.addCleanup(holder.close)
        holder.bind((self.b.ip, PORT + 1))
        self.compare("taken")

    def test_address_that_is_not_here(self):
        self.compare("foreign")

    def test_namespace_change(self):
        self.compare("move")

    def test_no_interface(self):
        with Net("b") as lonely:
            lonely["b"].ip = "127.0.0.1"
            lonely["b"].sysctl("net.ipv4.ip_forward", 0)
            status, plain = 0, None
            for preload in (False, True):
                env = preload_env(VMA_TRACELEVEL="warning") if preload else None
                done = lonely["b"].run(["/usr/bin/python3", "-B", f"{case.SUPPORT}/udp_own_way.py", "loopback",
                                        "127.0.0.1", PORT], env=env)
                self.assertEqual(done.rc, status, done.out)
                lines = done.out.splitlines()
                if plain is None:
                    plain = lines
                    self.assertEqual(plain, ["bound", "self", "ENETUNREACH"])
                self.assertTrue(set(plain) <= set(lines), lines)
                self.assertLessEqual(len(lines) - len(plain), 1, lines)

    def test_route_goes_elsewhere(self):
        """The peer's network is behind another interface than the address the socket is bound to."""
        with Net("abc") as net:
            a, b, c = net["a"], net["b"], net["c"]
            b.sysctl("net.ipv4.ip_forward", 1)
            for end, via in ((a, b.addresses["a"]), (c, b.addresses["c"])):
                done = end.run(["ip", "route", "add", "default", "via", via])
                self.assert_ok(done)
            for preload in (False, True):
                with self.subTest(preload=preload):
                    port = PORT + 10 + preload
                    echo = self.python(b, "udp_echo.py", b.addresses["c"], port, start=True, preload=preload)
                    echo.expect("ready")
                    done = self.python(a, "udp_talk.py", "ntp", b.addresses["c"], port, 100)
                    echo.kill()
                    self.assert_ok(done)


def everything(folder):
    """The text of all files of a folder."""
    text = ""
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            text += file.read()
    return text


class Attack(case.NetCase):
    """A server meets garbage at line rate and a right client afterwards."""

    def attack(self, server_env, prefix=(), frames=200_000, answers=100):
        """The server's output; its exit status is checked."""
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}", file=sys.stderr)
        server = self.b.start(["sockperf", "sr", "-i", self.b.ip, "-p", str(sockperf.PORT)], cpu=1, env=server_env,
                              prefix=prefix)
        self.b.wait_bound("udp", sockperf.PORT, timeout=60, process=server)
        sent = self.a.call(lambda: garbage.flood(self.a, self.b, sockperf.PORT, frames, seed))
        self.assertGreater(sent, 0.75 * frames)
        self.assertTrue(server.running(), server.out)
        before = self.b.counters("Udp")["InDatagrams"]
        done = self.a.run(["sockperf", "pp", "-i", self.b.ip, "-p", str(sockperf.PORT), "-t", "2"], cpu=0)
        moved = self.b.counters("Udp")["InDatagrams"] - before
        result = sockperf.parse("pp", done.rc, done.out, server.stop(timeout=60), server.out)
        # A slow server leaves sockperf without an observation, then it says nothing about drops either.
        self.assertEqual((result.client_rc, result.server_rc, result.dropped or 0), (0, 0, 0), result.text)
        self.assertGreater(result.answers, answers, result.text)
        if server_env:
            self.assertLess(moved, 0.05 * result.answers + case.SLACK, "the server was not offloaded after the garbage")
        return server.out


class Garbage(Attack):
    def test_kernel(self):
        self.attack(None)

    def test_preloaded(self):
        self.attack(preload_env())


class GarbageUnderValgrind(Attack):
    def test_memcheck(self):
        """No error of memcheck has a frame of ours in its stack; what the program does by itself is not ours."""
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "memcheck")
            self.attack(preload_env(), ["valgrind", "--trace-children=yes", "--num-callers=40", f"--log-file={log}.%p"], 20_000, 10)
            text = everything(folder)
        self.assertIn("ERROR SUMMARY", text)
        blocks = re.split(r"(?m)^==\d+== *\n", text)
        ours = [block for block in blocks if "libvma.so" in block and not block.startswith("Command")]
        self.assertEqual(ours, [], "\n".join(ours))


class GarbageUnderAsan(Attack):
    """In the tree whose libvma.so is instrumented."""

    def test_asan(self):
        runtime = os.path.realpath(subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True,
                                                  check=True).stdout.strip())
        env = preload_env()
        env["LD_PRELOAD"] = f"{runtime}:{env['LD_PRELOAD']}"
        with tempfile.TemporaryDirectory() as folder:
            # Leaks of the program itself are not the question here.
            env["ASAN_OPTIONS"] = f"detect_leaks=0:log_path={folder}/asan"
            env["UBSAN_OPTIONS"] = f"print_stacktrace=1:log_path={folder}/ubsan"
            output = self.attack(env, frames=100_000)
            self.assertEqual(everything(folder), "")
        self.assertNotIn("Sanitizer", output)


if __name__ == "__main__":
    case.main()
