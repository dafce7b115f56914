"""The static probes fire: bpftrace sees a connection made, accepted, going through its states and repeated, and a socket that goes
back to the kernel."""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import REPO, Process, library

PORT = 7440
ARGUMENTS = {"connect": 4, "accept": 4, "tcp_state": 3, "tcp_retransmit": 3, "hand_back": 2}
CLOSED, SYN_SENT, SYN_RECEIVED, ESTABLISHED, CLOSE_WAIT = 0, 2, 3, 4, 7


def reason(name):
    with open(os.path.join(REPO, "src/base/reasons.def"), encoding="ascii") as f:
        return re.findall(r"^REASON\((\w+),", f.read(), re.M).index(name)


def number(address):
    return struct.unpack("!I", socket.inet_aton(address))[0]


class Traced(case.NetCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vma-probes-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.lib = shutil.copy(library(), self.folder)  # of which nobody else has a process
        probes = [f'usdt:{self.lib}:vma:{name} {{ printf("{name}{" %ld" * n}\\n", {", ".join(f"arg{i}" for i in range(n))}); }}'
                  for name, n in ARGUMENTS.items()]
        # Not in a namespace: `ip netns exec` hides tracefs.
        self.trace = Process(["bpftrace", "-B", "line", "-e", 'BEGIN { printf("attached\\n"); } ' + " ".join(probes)])
        self.addCleanup(self.trace.stop, signal.SIGINT, 60)  # it takes its time to let go of the probes
        self.trace.expect(r"(?m)^attached$", timeout=60)

    def program(self, script, *words):
        program = self.python(self.b, script, *words, start=True, stdin=subprocess.PIPE,
                              env={"LD_PRELOAD": self.lib, "VMA_STATS_SHMEM_DIR": self.folder, "VMA_TRACELEVEL": "error"})
        return program, program.expect(r"ready (\d+)(?: (\d+))?")

    def seen(self, name, *values):
        """Waits for it; the connection, where there is one among the arguments."""
        return self.trace.expect(rf"(?m)^{name} {' '.join(map(str, values))}$").groups()

    def test_a_connection_from_its_start_to_a_repetition(self):
        program, _ = self.program("tcp_seen.py", self.b.ip, PORT)
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(client.close)
        client.settimeout(10)
        client.connect((self.b.ip, PORT))
        fd = program.expect(r"connection (\d+)").group(1)
        tcb, = self.seen("accept", fd, r"(-?\d+)", number(self.a.ip), client.getsockname()[1])
        self.seen("tcp_state", tcb, CLOSED, SYN_RECEIVED)
        self.seen("tcp_state", tcb, SYN_RECEIVED, ESTABLISHED)
        client.sendall(b"x")
        self.assertEqual(client.recv(10), b"x")
        self.assertNotIn(f"tcp_retransmit {tcb} ", self.trace.out)
        done = self.a.run(["nft", f"add table ip t; add chain ip t i {{ type filter hook input priority 0; }}; add rule ip t i tcp sport {PORT} drop"])
        self.assertEqual(done.rc, 0, done.out)
        client.sendall(b"again")
        self.seen("tcp_retransmit", tcb, r"\d+", 5)
        self.a.run(["nft", "delete table ip t"])
        self.assertEqual(client.recv(10), b"again")
        client.close()
        self.seen("tcp_state", tcb, ESTABLISHED, CLOSE_WAIT)

    def test_a_connection_out(self):
        listener = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind((self.a.ip, PORT))
        listener.listen()
        _, ready = self.program("reason_of.py", "connect", self.b.ip, self.a.ip, PORT)
        tcb, = self.seen("connect", ready.group(2), r"(-?\d+)", number(self.a.ip), PORT)
        self.seen("tcp_state", tcb, SYN_SENT, ESTABLISHED)

    def test_hand_back(self):
        _, ready = self.program("reason_of.py", "passed", self.b.ip, self.a.ip, PORT)
        self.seen("hand_back", ready.group(2), reason("fd_passed"))


if __name__ == "__main__":
    case.main()
