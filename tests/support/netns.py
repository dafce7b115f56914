"""Network namespaces for tests and benchmarks: made by the run that uses them, gone when it ends, however it ends.

    with Net("ab") as net:                      # two namespaces, one veth pair, 10.x.y.1 and 10.x.y.2
        server = net["b"].start(["sockperf", "sr", "-i", net["b"].ip], cpu=1, env=preload_env())
        net["b"].wait_bound("udp", 11111)
        done = net["a"].run(["sockperf", "pp", "-i", net["b"].ip], cpu=0)

Names carry the pid and a counter (vt<pid>n<seq><letter>), the addresses are only seen inside, so runs go side by side.
Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN). Clean-up: on leaving the block, on SIGTERM, SIGINT and SIGHUP (turned into
SystemExit), and by a watchdog process when this one is SIGKILLed. It ends every process inside the namespaces, daemons
included, then deletes them. All waits are bounded; times are seconds.
"""

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

CLONE_NEWNET = 0x40000000
ETC = "/etc/netns"
REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_libc = ctypes.CDLL(None, use_errno=True)
_sequence = itertools.count()
SLOW = float(os.environ.get("VMA_TEST_SLOW", "1"))  # how many times longer waits may be: the machine is emulated


def library():
    """Path of the libvma.so under test: VMA_TEST_LIB, else the release build's. FileNotFoundError when it is not there:
    ld.so would only warn and run the program on the kernel."""
    path = os.environ.get("VMA_TEST_LIB") or os.path.join(REPO, "build/release/lib/libvma.so")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no library to preload (./dev build release, or set VMA_TEST_LIB)")
    return os.path.abspath(path)


def binary(name):
    """Path of a built program: beside the library under test, else in the release build."""
    for folder in (os.path.join(os.path.dirname(library()), "../bin"), os.path.join(REPO, "build/release/bin")):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.exists(path):
            return path
    raise FileNotFoundError(f"{name} is not built (./dev build release)")


def preload_env(lib=None, **variables):
    """Environment of a preloaded program: LD_PRELOAD and the VMA_* variables given."""
    return {"LD_PRELOAD": lib or library(), **{k: str(v) for k, v in variables.items()}}


def no_capabilities():
    """Command prefix that runs a program as root without any capability."""
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]


def _ip(*args, check=True):
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def eventually(condition, timeout=5.0, step=0.01):
    """Polls condition() until it is true; its value, or its last false one when the time is over."""
    end = time.monotonic() + timeout * SLOW
    while True:
        value = condition()
        if value or time.monotonic() >= end:
            return value
        time.sleep(step)


def _kill_all(name):
    def emptied():
        pids = [int(p) for p in _ip("netns", "pids", name, check=False).split()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    return eventually(emptied, timeout=5)


def _delete_namespace(name):
    if os.path.exists(f"/run/netns/{name}"):
        _kill_all(name)
        _ip("netns", "del", name, check=False)
    shutil.rmtree(os.path.join(ETC, name), ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(ETC)  # ours only if it is empty


class Process:
    """A program running in a namespace. Output (stdout and stderr in one) is collected by a thread."""

    def __init__(self, argv, cwd=None, stdin=subprocess.DEVNULL):
        # Unbuffered, print() writes a line in two pieces, and a line of the library may come between.
        environ = {k: v for k, v in os.environ.items()
                   if k not in ("LD_PRELOAD", "PYTHONUNBUFFERED") and not k.startswith("VMA_")}
        self.argv = argv
        self._text = []
        self._news = threading.Condition()
        self._eof = False
        self._popen = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ,
                                       cwd=cwd, start_new_session=True)
        self.pid = self._popen.pid  # ip, taskset and env exec in place: this is the program
        self.stdin = self._popen.stdin
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            piece = os.read(self._popen.stdout.fileno(), 65536)
            with self._news:
                if piece:
                    self._text.append(piece.decode("utf-8", "replace"))
                else:
                    self._eof = True
                self._news.notify_all()
            if not piece:
                self._popen.stdout.close()
                return

    @property
    def out(self):
        with self._news:
            return "".join(self._text)

    def tell(self, line):
        """One line to standard input, which was a pipe at start."""
        self.stdin.write(line.encode() + b"\n")
        self.stdin.flush()

    def expect(self, pattern, timeout=10.0):
        """Waits for output that matches; the match. AssertionError when it ends or time passes without."""
        end = time.monotonic() + timeout * SLOW
        with self._news:
            while True:
                match = re.search(pattern, "".join(self._text))
                if match:
                    return match
                left = end - time.monotonic()
                if self._eof or left <= 0:
                    raise AssertionError(f"{self.argv}: no {pattern!r} in:\n{''.join(self._text)}")
                self._news.wait(left)

    def running(self):
        return self._popen.poll() is None

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout=30.0, output=True):
        """Exit status (negative: signal). On timeout the process group is killed and AssertionError raised. output:
        also wait for the end of its output, up to a second when a child of it keeps the pipe open."""
        try:
            status = self._popen.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{' '.join(self.argv)}: still running after {timeout * SLOW} s\n{self.out}") from None
        if output:
            self._reader.join(1.0)
        return status

    def stop(self, number=signal.SIGINT, timeout=5.0):
        """Asks it to end and waits; exit status."""
        self.send_signal(number)
        return self.wait(timeout)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.stdin:
            self.stdin.close()
        self._popen.wait(5)
        self._reader.join(1.0)

    def cpu_seconds(self):
        """Processor time used so far by the threads that live; ns resolution (stat has only 10 ms)."""
        total_ns = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/schedstat") as f:
                total_ns += int(f.read().split()[0])
        return total_ns / 1e9


class Done:
    """A finished program: rc, out, seconds."""

    def __init__(self, rc, out, seconds):
        self.rc, self.out, self.seconds = rc, out, seconds

    def __repr__(self):
        return f"rc={self.rc}\n{self.out}"


class Namespace:
    """One namespace. ip and dev: of its first link; addresses: a neighbour's letter to our address on that link."""

    def __init__(self, name, letter):
        self.name, self.letter = name, letter
        self.ip = self.dev = None
        self.path = f"/run/netns/{name}"
        self.addresses = {}
        self._processes = []

    def command(self, argv, cpu=None, env=None, prefix=()):
        line = ["ip", "netns", "exec", self.name]
        if cpu is not None:
            line += ["taskset", "-c", str(cpu)]
        line += list(prefix)
        if env:
            line += ["env", *[f"{k}={v}" for k, v in env.items()]]
        return line + [str(a) for a in argv]

    def start(self, argv, cpu=None, env=None, prefix=(), cwd=None, stdin=subprocess.DEVNULL):
        """Starts a program; it is killed with the namespace at the latest."""
        process = Process(self.command(argv, cpu, env, prefix), cwd=cwd, stdin=stdin)
        self._processes.append(process)
        return process

    def run(self, argv, cpu=None, env=None, prefix=(), timeout=60.0, cwd=None):
        """Runs a program to its end."""
        begin = time.monotonic()
        process = self.start(argv, cpu, env, prefix, cwd)
        rc = process.wait(timeout)
        self._processes.remove(process)
        return Done(rc, process.out, time.monotonic() - begin)

    def call(self, function):
        """function() in a thread that is in this namespace: its result. Sockets it makes stay in the namespace."""
        box = {}

        def inside():
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(fd, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                box["value"] = function()
            except BaseException as error:  # handed to the caller below
                box["error"] = error
            finally:
                os.close(fd)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if "error" in box:
            raise box["error"]
        return box["value"]

    def socket(self, *args, **kwargs):
        """A kernel socket of the test process itself, in this namespace."""
        import socket
        return self.call(lambda: socket.socket(*args, **kwargs))

    def read(self, path):
        """Text of a /proc/net or /proc/sys/net file as this namespace has it (use /proc/thread-self/net/...)."""
        def reader():
            with open(path) as f:
                return f.read()
        return self.call(reader)

    def sysctl(self, key, value):
        def writer():
            with open("/proc/sys/" + key.replace(".", "/"), "w") as f:
                f.write(str(value))
        self.call(writer)

    def counters(self, protocol):
        """The kernel's counters of /proc/net/snmp for "Udp", "Tcp", "Ip" or "Icmp" in this namespace, as a dict."""
        lines = [line.split() for line in self.read("/proc/thread-self/net/snmp").splitlines()
                 if line.startswith(protocol + ":")]
        return dict(zip(lines[0][1:], map(int, lines[1][1:])))

    def bound(self, protocol, port):
        """Is a kernel socket bound to the port (TCP: listening)? A twin counts, it is a kernel socket."""
        for line in self.read(f"/proc/thread-self/net/{protocol}").splitlines()[1:]:
            fields = line.split()
            if int(fields[1].split(":")[1], 16) == port and (protocol == "udp" or fields[3] == "0A"):
                return True
        return False

    def wait_bound(self, protocol, port, timeout=10.0, process=None):
        """Waits until the port is bound; AssertionError when the time is over or the process has ended."""
        def ended():
            return process is not None and not process.running()

        if not eventually(lambda: self.bound(protocol, port) or ended(), timeout) or ended():
            text = process.out if process else ""
            raise AssertionError(f"{self.name}: {protocol} port {port} is not bound after {timeout} s\n{text}")

    def wait_served(self, port, process, timeout=10.0, viewer=None):
        """Waits until a preloaded program's TCP listener is served by a ring: it is the kernel's until the program polls it.
        viewer: the command that is vma_stats, where not that of the build."""
        text = ""

        def served():
            nonlocal text
            text = subprocess.run([*(viewer or [binary("vma_stats")]), "explain", "-p", str(process.pid)], capture_output=True,
                                  text=True, timeout=10, check=False).stdout
            return re.search(rf"tcp +\S+:{port} +-> \* +offloaded", text)

        if not eventually(served, timeout):
            raise AssertionError(f"{self.name}: no ring serves port {port} after {timeout} s\n{text}\n{process.out}")

    def pids(self):
        return [int(p) for p in _ip("netns", "pids", self.name).split()]

    def etc(self, filename, text):
        """Gives programs in here their own /etc/<filename> (resolv.conf, hosts): ip netns exec bind-mounts it."""
        folder = os.path.join(ETC, self.name)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, filename), "w") as f:
            f.write(text)

    def end_processes(self):
        """Kills what was started here and whatever else runs in the namespace, daemons and orphans."""
        for process in self._processes:
            if process.running():
                process.kill()
            elif process.stdin:
                process.stdin.close()
        self._processes = []
        _kill_all(self.name)


class Loopback:
    """A namespace as its own programs reach it by 127.0.0.1."""

    ip = "127.0.0.1"

    def __init__(self, space):
        self._space = space

    def __getattr__(self, name):
        return getattr(self._space, name)

    def wait_served(self, port, process, timeout=10.0, viewer=None):
        self._space.wait_bound("tcp", port, timeout, process)  # the kernel's listener; its connections move later


class Net:
    """Namespaces named by letters and joined in a row by veth pairs: "ab" is one pair, "abc" is a-b and b-c.

    mtu: of every veth. offloads: ethtool -K switches, e.g. {"tx": "off"}. congestion: wished
    net.ipv4.tcp_congestion_control of the namespaces; the attribute of that name is what they have. ipv6: off
    unless asked, so that no router solicitation is counted.
    """

    def __init__(self, letters="ab", mtu=None, offloads=None, congestion=None, ipv6=False):
        self._run = f"vt{os.getpid()}n{next(_sequence)}"
        self._spaces = {l: Namespace(self._run + l, l) for l in letters}
        self._mtu, self._offloads, self._congestion, self._ipv6 = mtu, offloads, congestion, ipv6
        self.congestion = None
        self._watchdog = None
        self._folders = []  # removed with the namespaces
        self._old_signals = {}

    def __getitem__(self, letter):
        return self._spaces[letter]

    def __enter__(self):
        if os.geteuid() != 0:
            raise PermissionError("network namespaces need root")
        names = [s.name for s in self._spaces.values()]
        self._watchdog = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--watchdog", *names, *self._folders],
                                          stdin=subprocess.PIPE, start_new_session=True)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._old_signals[number] = signal.signal(number, lambda n, _: sys.exit(128 + n))
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _build(self):
        for space in self._spaces.values():
            _ip("netns", "add", space.name)
            if not self._ipv6:
                with contextlib.suppress(FileNotFoundError):  # kernel without IPv6
                    space.sysctl("net.ipv6.conf.all.disable_ipv6", 1)
                    space.sysctl("net.ipv6.conf.default.disable_ipv6", 1)
            self._set_congestion(space)
            _ip("-n", space.name, "link", "set", "lo", "up")
        letters = list(self._spaces)
        for index, (left, right) in enumerate(zip(letters, letters[1:])):
            self._join(self[left], self[right], f"10.{100 + os.getpid() % 100}.{index}")

    def _set_congestion(self, space):
        """A namespace may only choose among the machine's net.ipv4.tcp_allowed_congestion_control (EPERM else); that list
        is the machine's, so it is left alone and self.congestion tells what is in force."""
        if self._congestion:
            with contextlib.suppress(PermissionError, FileNotFoundError):
                space.sysctl("net.ipv4.tcp_congestion_control", self._congestion)
        self.congestion = space.read("/proc/sys/net/ipv4/tcp_congestion_control").strip()

    def _join(self, left, right, subnet):
        _ip("link", "add", f"v{right.letter}", "netns", left.name, "type", "veth",
            "peer", "name", f"v{left.letter}", "netns", right.name)
        for space, other, host in ((left, right, 1), (right, left, 2)):
            self._bring_up(space, other, f"v{other.letter}", f"{subnet}.{host}")

    def _bring_up(self, space, other, dev, address):
        if self._mtu:
            _ip("-n", space.name, "link", "set", dev, "mtu", str(self._mtu))
        _ip("-n", space.name, "addr", "add", f"{address}/24", "dev", dev)
        _ip("-n", space.name, "link", "set", dev, "up")
        for switch, state in (self._offloads or {}).items():
            done = space.run(["ethtool", "-K", dev, switch, state])
            if done.rc != 0:
                raise RuntimeError(f"ethtool -K {dev} {switch} {state}: {done.out}")
        space.addresses[other.letter] = address
        if space.ip is None:
            space.ip, space.dev = address, dev

    def __exit__(self, *_):
        for space in self._spaces.values():
            space.end_processes()
            _delete_namespace(space.name)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self._watchdog:
            self._watchdog.stdin.write(b"done\n")
            self._watchdog.stdin.close()
            self._watchdog.wait(10)
        for number, old in self._old_signals.items():
            signal.signal(number, old)
        return False


class SoftHcaNet(Net):
    """Two namespaces as Net's, but joined by the wire of the software HCA (docs/SOFTHCA.md) instead of a veth pair: each has a
    TAP interface, behind which softhca_port is the kernel's side of a card; the verbs ring uses the same card. env(letter):
    what a program needs to find it."""

    def __enter__(self):
        self._wire = tempfile.mkdtemp(prefix="softhca-", dir="/dev/shm")
        self._folders = [self._wire]
        self._ports = {}
        return super().__enter__()

    def _join(self, left, right, subnet):
        for space, other, host in ((left, right, 1), (right, left, 2)):
            _ip("-n", space.name, "tuntap", "add", "dev", "hca", "mode", "tap")
            self._bring_up(space, other, "hca", f"{subnet}.{host}")
        self.plug_in()

    def plug_in(self):
        """Starts the kernel's side of the cards again where it has ended with the other processes of a namespace."""
        for letter, space in self._spaces.items():
            if letter not in self._ports or not self._ports[letter].running():
                self._ports[letter] = space.start([binary("softhca_port"), "hca"], env={"SOFTHCA_WIRE": self._wire})
                self._ports[letter].expect("ready")

    def env(self, letter, ring="verbs"):
        """`ring`: the kind of ring that is to run on the card."""
        kind = {"verbs": "plain", "mlx5": "mlx5"}[ring]
        return softhca_env(self._wire, f"name=hca netdev={self[letter].dev} kind={kind}")


def softhca_env(wire, devices):
    """What a program needs to find devices of the software HCA."""
    libraries = os.path.join(os.path.dirname(library()), "softhca")
    return {"LD_LIBRARY_PATH": libraries, "SOFTHCA_WIRE": wire, "SOFTHCA": devices}


def _watch(names):
    """Watchdog: standard input ends without "done" when the parent died; then its namespaces and folders are removed here."""
    if b"done" not in sys.stdin.buffer.read():
        for name in names:
            if os.path.isabs(name):
                shutil.rmtree(name, ignore_errors=True)
            else:
                _delete_namespace(name)


if __name__ == "__main__" and sys.argv[1:2] == ["--watchdog"]:
    _watch(sys.argv[2:])
