"""Warnings: what docs/TROUBLESHOOTING.md explains, provoked in real programs. Each is said once, whatever the program does
again and again, and not at all where there is nothing to say."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import Net, binary, no_capabilities
from option_rows import option_rows

PORT = 7600
GROUP = "239.7.6.5"
# Ten datagrams and their answers, as the first may still come by the kernel; before each one with a wrong sum, from the next port.
ECHO_TEN = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.bind((sys.argv[1], int(sys.argv[2])))
print("bound", flush=True)
for _ in range(10):
    s.sendto(*s.recvfrom(100))
"""
SEND_TEN = """
import socket, struct, sys
to = (sys.argv[1], int(sys.argv[2]))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(to); own = s.getsockname()[0]; s.close()
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.bind((own, to[1] + 1))
for _ in range(10):
    raw.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 33, 1, 0, 64, 17, 0, socket.inet_aton(own), socket.inet_aton(to[0])) +
               struct.pack("!HHHH5s", to[1] + 2, to[1], 13, 0xdead, b"wrong"), to)
    s.sendto(b"right", to)
    assert s.recv(100) == b"right"
"""


class Talk(case.NetCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-said-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def talk(self, *commands, space=None, prefix=(), **variables):
        """Output of a preloaded program that makes, binds and uses a socket three times, and obeys commands."""
        space = space or self.b
        lines = []
        for i in range(3):
            lines.append(f"udp s{i} {space.ip} {PORT + i}")
            lines += [c.replace("SOCKET", f"s{i}") for c in commands]
        program = self.python(space, "sockets.py", preload=True, start=True, stdin=subprocess.PIPE, prefix=prefix,
                              env={"VMA_STATS_SHMEM_DIR": "", **variables})
        program.stdin.write(("\n".join(lines) + "\n").encode())
        program.stdin.close()
        self.assertEqual(program.wait(30), 0, program.out)
        self.assertIn("ready", program.out)
        self.assertNotIn("failed", program.out)
        return program.out

    def said_once(self, out, *texts):
        for text in texts:
            self.assertEqual(out.count(text), 1, f"{text!r} in:\n{out}")

    def conf(self, text):
        path = os.path.join(self.folder, "conf")
        with open(path, "w") as f:
            f.write(text)
        return path

    def quiet(self, **variables):
        return {"VMA_CONFIG_FILE": self.conf(""), "VMA_TRACELEVEL": "warning", **variables}


class Said(Talk):
    def test_nothing_to_say(self):
        out = self.talk(**self.quiet())
        self.assertEqual([line for line in out.splitlines() if "VMA" in line], [])

    def test_high_log_level(self):
        out = self.talk(**self.quiet(VMA_TRACELEVEL="debug"))
        self.said_once(out, "The log level is DEBUG", "For the usual speed unset VMA_TRACELEVEL", "Current Time: ")

    def test_locked_memory(self):
        out = self.talk(prefix=["prlimit", "--memlock=65536:65536"], **self.quiet(VMA_RING_KIND="verbs"))
        self.said_once(out, "The hard limit of locked memory is 64 KiB", "no RDMA device has a port on this interface")
        out = self.talk(prefix=["prlimit", "--memlock=65536:65536"], **self.quiet())
        self.assertNotIn("locked memory", out)  # this ring needs none

    def test_huge_pages(self):
        """The memory of a ring, as the kernel was asked for it; the warning where it gives none."""
        with open("/sys/kernel/mm/transparent_hugepage/shmem_enabled") as f:
            chosen = re.search(r"\[(\w+)\]", f.read()).group(1)
        for value, flag in (("0", "nh"), ("2", "hg"), (None, None)):
            program = self.python(self.b, "sockets.py", preload=True, start=True, stdin=subprocess.PIPE,
                                  env={"VMA_STATS_SHMEM_DIR": "", **self.quiet(**({"VMA_MEM_ALLOC_TYPE": value} if value else {}))})
            program.tell(f"udp s {self.b.ip} {PORT}")
            program.expect(r"(?m)^s \d+$")
            with open(f"/proc/{program.pid}/smaps") as f:
                flags = re.findall(r"/memfd:vma-arena .*(?:\n[A-Z]\w+:.*)*?\nVmFlags:(.*)", f.read())
            self.assertGreater(len(flags), 0)
            for each in flags:
                self.assertEqual([word for word in each.split() if word in ("hg", "nh")], [flag] if flag else [], flags)
            program.stdin.close()
            self.assertEqual(program.wait(30), 0, program.out)
            told = value == "2" and chosen in ("never", "deny")
            self.assertEqual(program.out.count(f"asks for huge pages; the kernel gives shared memory none ({chosen})"), told, program.out)

    def test_igmp_version_and_its_suppression(self):
        for version in (1, 3):
            self.b.sysctl(f"net.ipv4.conf.{self.b.dev}.force_igmp_version", version)
            join = f"join SOCKET {GROUP} {self.b.ip}"
            out = self.talk(join, **self.quiet())
            self.said_once(out, f"Interface {self.b.dev} speaks IGMPv{version}", "VMA_SUPPRESS_IGMP_WARNING=1",
                           f"net.ipv4.conf.{self.b.dev}.force_igmp_version=2")
            self.assertNotIn("IGMP", self.talk(join, **self.quiet(VMA_SUPPRESS_IGMP_WARNING=1)))
        self.b.sysctl(f"net.ipv4.conf.{self.b.dev}.force_igmp_version", 2)
        self.assertNotIn("IGMP", self.talk(f"join SOCKET {GROUP} {self.b.ip}", **self.quiet()))

    def test_arp_flux(self):
        with Net("abc") as net:
            b = net["b"]
            other = b.addresses["c"]
            devices = b.run(["ip", "-o", "-4", "addr"]).out
            second = next(line.split()[1] for line in devices.splitlines() if other in line)
            self.assertNotIn("ARP", self.talk(space=b, **self.quiet()))
            neighbour = b.ip.rsplit(".", 1)[0] + ".77/24"
            self.assert_ok(b.run(["ip", "addr", "replace", neighbour, "dev", second]))
            self.assert_ok(b.run(["ip", "addr", "replace", b.ip + "/24", "dev", b.dev]))
            out = self.talk(space=b, **self.quiet())
            self.said_once(out, f"Interfaces {b.dev} and {second} have addresses in one subnet", f"conf.{b.dev}.arp_ignore=1")
            for name, value in (("arp_ignore", 1), ("arp_announce", 2)):
                b.sysctl(f"net.ipv4.conf.{b.dev}.{name}", value)
            self.assertNotIn("ARP", self.talk(space=b, **self.quiet()))
            b.end_processes()

    def test_missing_capability(self):
        out = self.talk(prefix=no_capabilities(), **self.quiet())
        self.said_once(out, f"interface {self.b.dev}: no ring, its sockets stay with the kernel", "start the program as root")

    def test_option_of_the_kernel(self):
        out = self.talk("dontroute SOCKET", **self.quiet(VMA_TRACELEVEL="info"))
        for fd in range(3):
            self.assertEqual(out.count(f"fd {fd + 3}: socket option level 1 name 5 is the kernel's"), 1, out)

    def test_netserver(self):
        program = os.path.join(self.folder, "netserver")
        os.symlink("/usr/bin/python3", program)
        for arguments, told in (([], 1), (["-D", "-f"], 0)):
            done = self.b.run([program, "-c", "import socket; socket.socket()", *arguments],
                              env={**case.preload_env(), "VMA_STATS_SHMEM_DIR": "", **self.quiet()})
            self.assert_ok(done)
            self.assertEqual(done.out.count("netserver forks for each test"), told, done.out)

    def test_settings(self):
        out = self.talk(**self.quiet(VMA_RX_POLL="x", VMA_RX_POLL_YIELD="1000", VMA_RX_POL="1", XLIO_STRQ="1"))
        self.said_once(out, 'VMA_RX_POLL="x": not a number; expected -1..100000000',
                       "VMA_RX_POLL_YIELD has no effect: A wait that goes on polling offers its CPU",
                       "VMA_RX_POL is not a variable of this library; the nearest is VMA_RX_POLL", "XLIO_STRQ is ignored")

    def test_settings_without_a_meaning(self):
        """Each says so, once, whatever its value, and what to use instead."""
        idle = [name for name, effect in option_rows().items() if effect == "no_meaning"]
        self.assertGreater(len(idle), 20)
        values = {"VMA_DBG_SEND_MCPKT_MCGROUP": "239.1.1.1", "VMA_TIME_MEASURE_DUMP_FILE": "/tmp/x"}
        out = self.talk(**self.quiet(**{name: values.get(name, "1") for name in idle}))
        for name in idle:
            with self.subTest(name):
                self.assertEqual(len(re.findall(rf"{name} has no effect: \S.{{15,}}", out)), 1, out)

    def test_broken_rules(self):
        path = self.conf("use os udp_sender *:9\nuse os tcp_serve *:80\n")
        out = self.talk(VMA_CONFIG_FILE=path, VMA_TRACELEVEL="warning")
        self.said_once(out, f"{path}:2:8: expected a role", "the 1 rules before it apply")

    def test_rate_limit(self):
        """One place in the code, thirty sockets: twenty lines."""
        commands = [f"udp p{i}\ndontroute p{i}" for i in range(30)]
        program = self.python(self.b, "sockets.py", preload=True, start=True, stdin=subprocess.PIPE,
                              env={"VMA_STATS_SHMEM_DIR": "", **self.quiet(VMA_TRACELEVEL="info")})
        program.stdin.write(("\n".join(commands) + "\n").encode())
        program.stdin.close()
        self.assertEqual(program.wait(30), 0, program.out)
        self.assertEqual(program.out.count("socket option level"), 20, program.out)


class Log(Talk):
    """Where the log goes and what a line looks like."""

    def test_file_with_process_id(self):
        out = self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_LOG_FILE=os.path.join(self.folder, "log.%d"))
        pid = out.split("ready ")[1].split()[0]
        self.assertNotIn("VMA", out)
        with open(os.path.join(self.folder, f"log.{pid}")) as f:
            text = f.read()
        self.assertIn("VMA_VERSION: ", text)
        self.assertNotIn("\033", text)

    def test_a_file_that_cannot_be_opened(self):
        out = self.talk(**self.quiet(VMA_LOG_FILE="/nowhere/log"))
        self.said_once(out, "VMA_LOG_FILE: cannot open '/nowhere/log'")

    def test_function_of_the_program(self):
        program = os.path.join(os.path.dirname(binary("vma_stats")), "log_callback")
        env = {**case.preload_env(), "VMA_STATS_SHMEM_DIR": "", "VMA_CONFIG_FILE": self.conf("")}
        plain = self.b.run([program], env=env)
        self.assert_ok(plain)
        address = re.search(r"(?m)^receiver (0x\w+)$", plain.out).group(1)
        self.assertNotIn("level 3:", plain.out)
        done = self.b.run([program], env={**env, "VMA_LOG_CB_FUNC_PTR": address})
        self.assert_ok(done)
        self.said_once(done.out, "level 3: VMA INFO: VMA_VERSION: ")
        self.assertNotRegex(done.out, r"(?m)^ VMA INFO")  # nowhere else

    def test_levels_by_name_and_number(self):
        for text in ("none", "panic", "0", "error", "1", "warn", "WARNING", "2"):
            with self.subTest(text):
                self.assertNotIn("VMA INFO", self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_TRACELEVEL=text))
        for text in ("info", "Information", "3"):
            with self.subTest(text):
                out = self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_TRACELEVEL=text)
                self.said_once(out, "VMA_VERSION: ")
                self.assertNotIn("VMA DETAILS", out)
        out = self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_TRACELEVEL="details")
        self.assertIn("VMA DETAILS: ", out)
        self.assertNotIn("VMA DEBUG", out)
        for text in ("debug", "4", "5", "func", "finer", "all"):
            with self.subTest(text):
                self.assertIn(" VMA DEBUG: ", self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_TRACELEVEL=text))

    def test_details(self):
        for details, pattern in ((0, r"(?m)^ VMA INFO: VMA_VERSION"), (1, r"(?m)^ Tid: +\d+ VMA INFO: VMA_VERSION"),
                                 (2, r"(?m)^ Pid: +\d+ Tid: +\d+ VMA INFO: VMA_VERSION"),
                                 (3, r"(?m)^ Time: +\d+\.\d{3} Pid: +\d+ Tid: +\d+ VMA INFO: VMA_VERSION")):
            self.assertRegex(self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_LOG_DETAILS=details), pattern)

    def test_colours_only_on_a_terminal(self):
        self.assertNotIn("\033", self.talk(VMA_CONFIG_FILE=self.conf(""), VMA_LOG_COLORS=1))
        for colours in (None, "1", "0"):
            env = {"LD_PRELOAD": case.preload_env()["LD_PRELOAD"], "VMA_CONFIG_FILE": self.conf(""),
                   "VMA_STATS_SHMEM_DIR": ""}
            if colours:
                env["VMA_LOG_COLORS"] = colours
            line = " ".join(["env", *[f"{k}={v}" for k, v in env.items()], "/usr/bin/python3", "-c",
                             "'import socket; socket.socket()'"])
            done = self.b.run(["script", "-qec", line, "/dev/null"])  # standard error is a terminal
            self.assertIn("VMA_VERSION", done.out)
            self.assertEqual("\033[" in done.out, colours != "0", repr(done.out[:300]))


class Levels(Talk):
    """libvma-debug.so has the levels that the release leaves out: a line for each frame, and for each that is dropped."""

    def exchange(self, name, level):
        """What a preloaded receiver says of datagrams from the kernel, its answers, and datagrams with a wrong sum."""
        folder = os.path.dirname(case.preload_env()["LD_PRELOAD"])
        env = {**case.preload_env(), "LD_PRELOAD": f"{folder}/{name}", "VMA_STATS_SHMEM_DIR": "", "VMA_TRACELEVEL": level,
               "VMA_CONFIG_FILE": self.conf("")}
        server = self.b.start([sys.executable, "-B", "-c", ECHO_TEN, self.b.ip, str(PORT)], env=env)
        server.expect("bound")
        done = self.a.run([sys.executable, "-B", "-c", SEND_TEN, self.b.ip, str(PORT)])
        self.assert_ok(done)
        self.assertEqual(server.wait(30), 0, server.out)
        return server.out

    def test_a_line_for_each_frame(self):
        ways = f"{self.a.ip}:{PORT + 1} > {self.b.ip}:{PORT} UDP", f"{self.b.ip}:{PORT} > {self.a.ip}:{PORT + 1} UDP"
        out = self.exchange("libvma-debug.so", "finer")
        self.assertRegex(out, rf"VMA FINER: frame: in interface \d+: {ways[0]}, 47 bytes")
        self.assertRegex(out, rf"VMA FINER: frame: out interface \d+: {ways[1]}, 47 bytes")
        self.assertNotIn("this build stops at", out)
        for name, level in (("libvma-debug.so", "debug"), ("libvma.so", "finer")):
            with self.subTest(name=name):
                self.assertNotIn("frame:", self.exchange(name, level))
        self.assertIn("this build stops at DEBUG", self.exchange("libvma.so", "finer"))

    def test_a_line_for_each_drop(self):
        out = self.exchange("libvma-debug.so", "fine")
        self.assertRegex(out, rf"VMA FINE: frame: dropped \(udp_checksum\) interface \d+: {self.a.ip}:{PORT + 2} > {self.b.ip}:{PORT} UDP")
        self.assertNotIn("VMA FINER", out)


class NotPreloaded(Talk):
    """vma_stats tells why a process has no page."""

    def why(self, argv, env=None):
        program = self.b.start(argv, env=env, stdin=subprocess.PIPE)
        try:
            program.expect("ready")
            done = self.b.run([binary("vma_stats"), "-k", self.folder, "explain", "-p", str(program.pid)])
        finally:
            program.kill()
        self.assertEqual(done.rc, 1)
        return done.out

    def test_static_program(self):
        static = os.path.join(os.path.dirname(binary("vma_stats")), "idle_static")
        self.assertIn(f"{static} cannot be preloaded: it is statically linked", self.why([static], case.preload_env()))

    def test_file_capabilities(self):
        program = os.path.join(self.folder, "idle")
        shutil.copy(os.path.join(os.path.dirname(binary("vma_stats")), "idle_dynamic"), program)
        os.chmod(self.folder, 0o755)
        subprocess.run(["setcap", "cap_net_raw+ep", program], check=True)
        out = self.why(["setpriv", "--reuid=65534", "--clear-groups", "env", *[f"{k}={v}" for k, v in case.preload_env().items()],
                        program])
        self.assertIn(f"{program} cannot be preloaded: it is set-user-id or has file capabilities", out)

    def test_plain_and_idle(self):
        dynamic = os.path.join(os.path.dirname(binary("vma_stats")), "idle_dynamic")
        self.assertRegex(self.why([dynamic]), r"process \d+ is not preloaded")
        self.assertRegex(self.why([dynamic], case.preload_env()), r"process \d+ is preloaded, but has made no socket yet")
        out = self.b.run([binary("vma_stats"), "-k", self.folder, "explain", "-p", "4194303"])
        self.assertIn("there is no process 4194303", out.out)


if __name__ == "__main__":
    case.main()
