"""The units of the package vmad under a running systemd, in a Debian of its own: a user's service that can never have privileges
(systemd-run with NoNewPrivileges=) is served by the packet ring, before and after the broker is restarted, killed and upgraded."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from debian_root import Booted, RootCase
from netns import eventually

PACKAGES = ["libvma", "libvma-utils", "vmad"]
SERVED = "libvma-test-server"  # the unit of the server
# What the unit's CapabilityBoundingSet= names, as /proc/PID/status has it.
CAPABILITIES = sum(1 << n for n in (10, 12, 13, 21, 38, 39))  # NET_BIND_SERVICE NET_ADMIN NET_RAW SYS_ADMIN PERFMON BPF


class Units(RootCase):
    more = ["systemd", "dbus"]  # dbus: what systemd-run --wait hears the end by

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bootstrap()
        # There is no way to Debian's servers from the namespace.
        cls.inside("apt-get", "-qy", "--no-install-recommends", "--download-only", "install", *cls.here(*PACKAGES))

    def as_user(self, *options):
        return ["systemd-run", "--quiet", "--collect", *options, "--property=User=trader", "--property=NoNewPrivileges=yes",
                "--setenv=LD_PRELOAD=libvma.so"]

    def serve(self, protocol, port):
        options = ["--tcp"] if protocol == "tcp" else []
        self.host.run(*self.as_user(f"--unit={SERVED}"), "sockperf", "sr", "-i", self.b.ip, "-p", str(port), *options)
        self.b.wait_bound(protocol, port)
        self.wait_offloaded(port)

    def wait_offloaded(self, port):
        pid = self.host.property(SERVED, "MainPID")
        seen = ""

        def offloaded():
            nonlocal seen
            seen = self.b.run(self.host.command("vma_stats", "explain", "-p", pid)).out  # an error before its page is there
            return re.search(rf":{port} +-> \S+ +offloaded", seen)

        self.assertTrue(eventually(offloaded, 10), f"{seen}\n{self.log(SERVED)}")

    def log(self, unit):
        return self.host.run("journalctl", "--unit", unit, "--output=cat")

    def ping(self, space, command, protocol, port):
        """From one of the two ends, where the program is the kernel's, to the other: answers come, past the kernel of b."""
        name = {"tcp": ("Tcp", "InSegs"), "udp": ("Udp", "InDatagrams")}[protocol]
        options = ["--tcp"] if protocol == "tcp" else []
        before = self.b.counters(name[0])[name[1]]
        peer = self.b if space is self.a else self.a
        done = space.run([*command, "sockperf", "pp", "-i", peer.ip, "-p", port, "-t", "1", *options])
        self.assertEqual(done.rc, 0, done.out)
        self.assertGreater(sockperf.parse("pp", done.rc, done.out, 0, "").answers, 1000, done.out)
        self.assertLess(self.b.counters(name[0])[name[1]] - before, case.SLACK, done.out)

    def broker(self):
        return self.host.property("vmad.service", "MainPID")

    def replaced(self, command):
        """Another process is the broker, and the server has shown it what it has."""
        old, news = self.broker(), self.log(SERVED).count("goes on for this process")
        self.host.run(*command)
        self.assertTrue(eventually(lambda: self.broker() not in ("0", old), 20), self.log("vmad"))
        self.assertTrue(eventually(lambda: self.log(SERVED).count("goes on for this process") > news, 20), self.log(SERVED))

    def test_units(self):
        self.host = Booted(self.b, self.root, self.net.group)
        self.host.run("apt-get", "-qy", "--no-install-recommends", "install", *self.here(*PACKAGES), timeout=120)
        self.assertEqual(self.host.property("vmad.socket", "ActiveState"), "active")
        self.assertEqual(self.broker(), "0")  # the first who asks starts it
        self.host.run("useradd", "--system", "--groups", "vma", "trader")
        self.serve("tcp", 5001)
        self.ping(self.a, [], "tcp", 5001)
        with self.subTest("rights of the broker"):
            status = self.host.run("cat", f"/proc/{self.broker()}/status")
            for line in (f"CapBnd:\t{CAPABILITIES:016x}", f"CapPrm:\t{CAPABILITIES:016x}", "NoNewPrivs:\t1", "Seccomp:\t2"):
                self.assertIn(f"\n{line}\n", status)
            self.assertEqual(self.log("vmad").count("serving"), 1, self.log("vmad"))
        with self.subTest("rights of the server"):
            status = self.host.run("cat", f"/proc/{self.host.property(SERVED, 'MainPID')}/status")
            self.assertRegex(status, r"CapPrm:\t0{16}\n")
            self.assertRegex(status, r"NoNewPrivs:\t1\n")
        for command in (["systemctl", "restart", "vmad"], ["systemctl", "kill", "--signal=KILL", "vmad"],
                        ["dpkg", "--install", *self.here("vmad")]):
            with self.subTest(command=" ".join(command)):
                self.replaced(command)
                self.ping(self.a, [], "tcp", 5001)
        self.host.run("systemctl", "stop", SERVED)
        self.serve("udp", 5002)
        self.ping(self.a, [], "udp", 5002)
        with self.subTest("a client"):
            self.a.start(["sockperf", "sr", "-i", self.a.ip, "-p", "5003", "--tcp"])
            self.a.wait_bound("tcp", 5003)
            self.ping(self.b, self.host.command(*self.as_user("--pipe", "--wait")), "tcp", 5003)
        self.host.run("apt-get", "-qy", "purge", *PACKAGES)
        for unit in ("vmad.socket", "vmad.service"):
            self.assertEqual([self.host.property(unit, name) for name in ("LoadState", "ActiveState")], ["not-found", "inactive"])
        self.assertEqual(self.host.run("find", "/run", "/etc/systemd", "-name", "vma*"), "")


if __name__ == "__main__":
    case.main()
