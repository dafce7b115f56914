"""vmad --listen in a mount namespace with a /run of its own, and prefixes for programs that see its socket."""

import itertools
import signal
import subprocess

from netns import Namespace, binary

NOBODY, GAMES = 65534, 60
SOCKET = "/run/vma/vmad.sock"  # kHostSocket (src/broker/spawn.h)


class HostBroker:
    def __init__(self, space, *words, command=()):
        """`command`: what executes it; at the end of its arguments the program and its own come."""
        self.space = space
        own_run = 'mount -t tmpfs none /run && mkdir /run/vma && exec "$0" "$@"'
        self._start(["unshare", "--mount", "sh", "-c", own_run, *command], words)

    def _start(self, prefix, words):
        self.process = self.space.start([*prefix, binary("vmad"), "--listen", *words])
        self.process.expect("serving")

    def kill(self, number=signal.SIGKILL):
        """Its exit status."""
        self.process.send_signal(number)
        return self.process.wait(10)

    def enter(self, pid=None):
        """Prefix: the mount namespace; that of another process in it when the daemon may be gone."""
        return ["nsenter", "--mount", f"--target={pid or self.process.pid}"]

    def again(self, pid, *words):
        """Killed and started again in its namespace, in which that process is."""
        self.kill()
        self.resume(pid, *words)

    def resume(self, pid, *words):
        """Started again in its namespace, in which that process is."""
        self._start(self.enter(pid), words)

    def user(self, groups=(GAMES,), more=(), user=NOBODY, enter=None, before=()):
        """Prefix: user nobody (or another) in it, without any capability. `more`: options of setpriv; `enter`: as there; `before`: as root."""
        kept = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        return [*self.enter(enter), *before, "setpriv", f"--reuid={user}", f"--regid={user}", *kept, *more]


class Box(Namespace):
    """An unprivileged container, made by user nobody: user, mount and network namespaces of his own, in which he is root. It sees the
    host broker's socket, and is joined to `outside` by a veth pair. What the pair's ends have: ip here, outside_ip there."""

    _numbers = itertools.count(1)

    DEV = "eth0"

    def __init__(self, host, outside):
        number = next(self._numbers)
        super().__init__(f"box{number}", "x")
        # It ends when this end of its standard input is closed, at the latest when the test dies.
        self.holder = host.space.start([*host.user(), "unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-c",
                                        "echo in; read line"], stdin=subprocess.PIPE)
        self.holder.expect("in")
        self.path = f"/proc/{self.holder.pid}/ns/net"
        # The daemon may be gone when something is started here; this is in its mount namespace, too.
        self._enter = host.user(enter=self.holder.pid)
        self.dev, self.ip, self.outside_ip = self.DEV, f"198.18.{30 + number}.2", f"198.18.{30 + number}.1"
        link = self.name_outside = f"box{number}"
        for line in (f"link add {link} type veth peer name {self.dev} netns {self.holder.pid}", f"address add {self.outside_ip}/24 dev {link}",
                     f"link set {link} up"):
            self._must(outside.run(["ip", *line.split()]))
        for line in ("link set lo up", f"address add {self.ip}/24 dev {self.dev}", f"link set {self.dev} up"):
            self._must(self.run(["ip", *line.split()]))

    def _must(self, done):
        if done.rc != 0:
            raise RuntimeError(done.out)

    def command(self, argv, cpu=None, env=None, prefix=()):
        line = [*self._enter, "nsenter", f"--target={self.holder.pid}", "--user", "--net",
                "--preserve-credentials", *prefix]
        if env:
            line += ["env", *[f"{k}={v}" for k, v in env.items()]]
        return line + [str(a) for a in argv]

    def end_processes(self):
        for process in self._processes:
            process.kill()
        self._processes = []

    def end(self):
        self.end_processes()
        self.holder.kill()
