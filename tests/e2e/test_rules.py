"""Rules that change while a program runs: vma_stats --reload and VMA_CONF_WATCH=1. A decided socket keeps its decision, new
ones go by the new rules, a file that cannot be used leaves the old ones, and the message says where the error is."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually

PORT = 7500
OFFLOADED, KERNEL = "offloaded: packet ring", "kernel: rule"


class Rules(case.NetCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-rules-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.file = os.path.join(self.folder, "libvma.conf")
        self.fds = {}

    def begin(self, rules, prefix=(), **variables):
        if rules is not None:
            self.write(rules)
        env = {"VMA_STATS_SHMEM_DIR": self.folder, "VMA_CONFIG_FILE": self.file, **variables}
        self.program = self.python(self.b, "sockets.py", preload=True, start=True, stdin=subprocess.PIPE, prefix=prefix,
                                   env={k: v for k, v in env.items() if v is not None})
        self.pid = int(self.program.expect(r"(?m)^ready (\d+)$").group(1))

    def write(self, rules):
        with open(self.file, "w") as f:
            f.write(rules)

    def rename_into_place(self, rules):
        with open(self.file + ".new", "w") as f:
            f.write(rules)
        os.rename(self.file + ".new", self.file)

    def tell(self, line, answer):
        self.program.stdin.write(line.encode() + b"\n")
        self.program.stdin.flush()
        return self.program.expect(f"(?m)^{answer}$")

    def bound(self, name, port):
        self.fds[name] = int(self.tell(f"udp {name} {self.b.ip} {port}", rf"{name} (\d+)").group(1))

    def stats(self, *args, status=0):
        done = self.b.run([binary("vma_stats"), "-k", self.folder, *args], timeout=20)
        self.assertEqual(done.rc, status, done.out)
        return done.out

    def assert_served(self, name, by):
        out = self.stats("explain", "-p", str(self.pid))
        line = re.search(rf"(?m)^ +fd {self.fds[name]} .*$", out)
        self.assertIsNotNone(line, out)
        self.assertIn(by, line.group(0))

    def served_next(self, by):
        """Makes sockets until one is served so: what a change of the file does to new sockets, and how soon."""
        self.tries = getattr(self, "tries", 0)

        def one():
            self.tries += 1
            self.bound(f"try{self.tries}", PORT + 100 + self.tries)
            out = self.stats("explain", "-p", str(self.pid))
            return by in re.search(rf"(?m)^ +fd {self.fds[f'try{self.tries}']} .*$", out).group(0)

        self.assertTrue(eventually(one, 10, step=0.1), self.program.out)


class Reload(Rules):
    def reload(self, status=0):
        return self.stats("--reload", "-p", str(self.pid), status=status)

    def test_good_broken_gone_and_back(self):
        self.begin("# none\n")
        self.bound("one", PORT + 1)
        self.assert_served("one", OFFLOADED)
        self.write(f"use os udp_receiver *:{PORT + 1}-{PORT + 9}\n")
        self.bound("two", PORT + 10)
        self.assert_served("two", OFFLOADED)
        self.assertRegex(self.reload(), rf"process {self.pid}: rules file {self.file}: 1 rules read again \(generation 1, 1 "
                                        "rules in force")
        self.bound("three", PORT + 3)
        self.assert_served("three", KERNEL)
        self.assert_served("one", OFFLOADED)
        # What is sent and received meanwhile goes on past the kernel.
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        with self.past_the_kernel(self.b, 100):
            for _ in range(100):
                peer.sendto(b"x", (self.b.ip, PORT + 1))
        # Broken: where, what, and the old rules stay.
        self.write("use vma udp_receiver *:*\nuse nonsense\n")
        out = self.reload(status=1)
        self.assertIn(f"{self.file}:2:5: expected a transport", out)
        self.assertIn("the old rules stay (generation 1, 1 rules in force)", out)
        self.bound("four", PORT + 4)
        self.assert_served("four", KERNEL)
        self.assertEqual(self.program.out.count(f"{self.file}:2:5: expected"), 1)
        # Gone, and back.
        os.remove(self.file)
        self.assertRegex(self.reload(status=1), "No such file or directory; the old rules stay")
        self.bound("five", PORT + 5)
        self.assert_served("five", KERNEL)
        self.rename_into_place(f"use vma udp_receiver *:{PORT + 6}\nuse os udp_receiver *:*\n")
        self.assertIn("2 rules read again (generation 2", self.reload())
        self.bound("six", PORT + 6)
        self.assert_served("six", OFFLOADED)
        self.assert_served("one", OFFLOADED)
        self.assert_served("five", KERNEL)
        self.assertIn("unchanged, 2 rules (generation 2", self.reload())

    def test_a_program_without_a_thread_of_ours_reads_at_its_next_socket(self):
        self.begin("# none\n")
        self.tell("udp early", r"early \d+")
        self.write("use os udp_receiver *:*\n")
        self.assertIn("will read its rules again at its next socket", self.reload())
        self.bound("later", PORT + 1)
        self.assert_served("later", KERNEL)

    def test_the_directory_of_the_program_does_not_matter(self):
        self.file = os.path.join(self.folder, "rules")
        self.write("# none\n")
        self.begin(None, prefix=["env", "-C", self.folder], VMA_CONFIG_FILE="rules")
        self.tell(f"udp first {self.b.ip} {PORT}", r"first \d+")
        self.tell("chdir /", "chdir")
        self.write("use os udp_receiver *:*\n")
        self.assertIn("1 rules read again", self.reload())

    def test_who_does_not_answer(self):
        self.begin("# none\n")
        self.bound("one", PORT + 1)
        self.assertTrue(eventually(lambda: "unchanged" in self.reload()), "the internal thread does not answer")
        self.program.send_signal(signal.SIGSTOP)
        self.assertIn("does not answer", self.reload(status=1))
        self.program.send_signal(signal.SIGCONT)
        self.assertIn("needs -p or -n", self.stats("--reload", status=1))
        self.assertIn("no preloaded process", self.stats("--reload", "-p", "1", status=1))


class Watched(Rules):
    def begin(self, rules, **options):
        super().begin(rules, **{"VMA_CONF_WATCH": "1", **options})

    def test_every_way_of_writing_the_file(self):
        self.begin("# none\n")
        self.bound("one", PORT + 1)
        self.assert_served("one", OFFLOADED)
        self.write("use os udp_receiver *:*\n")
        self.served_next(KERNEL)
        self.rename_into_place("# editors rename\n")
        self.served_next(OFFLOADED)
        self.rename_into_place("use os udp_receiver *:*\n# again\n")
        self.served_next(KERNEL)
        # Broken: said once for each kind of mistake, and without effect.
        for _ in range(3):
            self.rename_into_place("use vma udp_receiver *:*\nuse nonsense\n")
        self.program.expect(re.escape(self.file) + ":2:5: expected a transport")
        self.served_next(KERNEL)
        os.remove(self.file)
        self.program.expect("No such file or directory; the old rules stay")
        self.served_next(KERNEL)
        self.write("# back\n")
        self.served_next(OFFLOADED)
        self.assert_served("one", OFFLOADED)
        self.assertEqual(self.program.out.count(self.file + ":2:5: expected"), 1, self.program.out)

    def test_the_default_file(self):
        """/etc of its own, in which the default file comes, changes and goes."""
        etc = os.path.join(self.folder, "etc")
        subprocess.run(["cp", "-a", "/etc", etc], check=True)
        self.file = os.path.join(etc, "libvma.conf")
        if os.path.exists(self.file):
            os.remove(self.file)
        self.begin(None, VMA_CONFIG_FILE=None,
                   prefix=["unshare", "-m", "sh", "-c", f"mount --bind {etc} /etc && exec \"$@\"", "sh"])
        self.bound("one", PORT + 1)
        self.assert_served("one", OFFLOADED)
        self.write("use os udp_receiver *:*\n")
        self.served_next(KERNEL)
        self.assertNotIn("No such file", self.program.out)
        self.program.expect("/etc/libvma.conf: 1 rules read again")
        os.remove(self.file)
        self.program.expect("/etc/libvma.conf: No such file or directory; the old rules stay")
        self.rename_into_place("# all\n")
        self.served_next(OFFLOADED)

    def test_one_descriptor_out_of_the_way(self):
        self.begin("# none\n")
        self.bound("one", PORT + 1)

        def watches():
            folder = f"/proc/{self.pid}/fdinfo"
            found = []
            for fd in os.listdir(folder):
                with open(os.path.join(folder, fd)) as f:
                    if "inotify wd" in f.read():
                        found.append(int(fd))
            return found

        self.assertEqual(len(watches()), 1)
        self.assertGreater(watches()[0], 100, "our descriptors are above the program's")


if __name__ == "__main__":
    case.main()
