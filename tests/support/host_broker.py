"""vmad --listen in a mount namespace with a /run of its own, and prefixes for programs that see its socket."""

import signal

from netns import binary

NOBODY, GAMES = 65534, 60
SOCKET = "/run/vma/vmad.sock"  # kHostSocket (src/broker/spawn.h)


class HostBroker:
    def __init__(self, space, *words, command=()):
        """`command`: what executes it; at the end of its arguments the program and its own come."""
        self._space = space
        own_run = 'mount -t tmpfs none /run && mkdir /run/vma && exec "$0" "$@"'
        self._start(["unshare", "--mount", "sh", "-c", own_run, *command], words)

    def _start(self, prefix, words):
        self.process = self._space.start([*prefix, binary("vmad"), "--listen", *words])
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
        self._start(self.enter(pid), words)

    def user(self, groups=(GAMES,), more=()):
        """Prefix: user nobody in it, without any capability. `more`: options of setpriv."""
        kept = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        return [*self.enter(), "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", *kept, *more]
