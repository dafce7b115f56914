#!/usr/bin/env python3
"""Programs that none of us wrote start, work and end under the preloaded library, and it adds nothing to their output.

usage: programs.py LIBRARY EARLY_LIBRARY
"""
import glob
import os
import shutil
import stat
import subprocess
import sys
import tempfile

library, early = map(os.path.abspath, sys.argv[1:3])
LIBDIR = "/usr/lib/x86_64-linux-gnu"
failures = []

UNIX_SOCKETS = """
import socket, select, os, signal, subprocess, threading
a, b = socket.socketpair()
a.sendall(b'x' * 100); assert b.recv(200) == b'x' * 100
ep = select.epoll(); ep.register(b, select.EPOLLIN); a.send(b'y'); assert ep.poll(5)
assert select.select([b], [], [], 5)[0] and select.poll() is not None
assert subprocess.run(['cat'], input=b'in', capture_output=True).stdout == b'in'
assert os.waitpid(os.posix_spawn('/bin/true', ['true'], os.environ), 0)[1] == 0
pid = os.fork()
if pid == 0: os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1)); signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.sigtimedwait([], 0) if False else signal.pause()
assert seen and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
socket.send_fds(a, [b'f'], [1]); assert len(socket.recv_fds(b, 10, 1)[1]) == 1
print('done')
"""
# Loopback: both ends in one process, on every kind of wait.
INET_SOCKETS = """
import socket, select, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); u.settimeout(10)
v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); v.sendto(b'hello', u.getsockname())
assert u.recvfrom(100)[0] == b'hello'
p = select.poll(); p.register(u, select.POLLIN); v.sendto(b'again', u.getsockname())
assert p.poll(10000) and u.recv(100) == b'again'
l = socket.create_server(('127.0.0.1', 0))
def serve():
    c = l.accept()[0]; data = b''
    while len(data) < 100000: data += c.recv(65536)
    c.sendall(data[::-1]); c.close()
t = threading.Thread(target=serve); t.start()
c = socket.create_connection(l.getsockname(), 10); c.sendall(b'a' * 99999 + b'b')
data = b''
while True:
    part = c.recv(65536)
    if not part: break
    data += part
t.join(); assert data == b'b' + b'a' * 99999
print('done')
"""


def run(command, preload):
    env = dict(os.environ, LC_ALL="C")
    env.pop("LD_PRELOAD", None)
    if preload:
        env["LD_PRELOAD"] = preload
    return subprocess.run(command, env=env, capture_output=True, timeout=60)


def check(what, command, preload=library, same_output=True, stdout=None):
    plain = run(command, None)
    ours = run(command, preload)
    ok = ours.returncode == plain.returncode
    if same_output:
        ok = ok and (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    if stdout is not None:
        ok = ok and ours.stdout == stdout and ours.returncode == 0
    print(("ok    " if ok else "FAILED"), what)
    if not ok:
        failures.append(what)
        print("  plain:", plain.returncode, plain.stdout[-300:], plain.stderr[-300:])
        print("  ours: ", ours.returncode, ours.stdout[-300:], ours.stderr[-600:])


def main():
    python = sys.executable
    check("true", ["/bin/true"])
    check("ls", ["/bin/ls", "/"])
    check("sh pipeline", ["/bin/sh", "-c", "echo one | tr o x; (exit 4); echo $?"])
    check("bash job control", ["bash", "-c", "sleep 0 & wait; trap 'echo t' USR1; kill -USR1 $$; cat <(echo sub) | cat"])
    check("python, unix sockets", [python, "-c", UNIX_SOCKETS], stdout=b"done\n")
    check("python, inet sockets", [python, "-c", INET_SOCKETS], same_output=False, stdout=b"done\n")
    for name, arguments in (("curl", ["--version"]), ("sockperf", ["--help"]), ("iperf3", ["--version"]),
                            ("redis-server", ["--version"]), ("node", ["-e", "console.log(6*7)"]), ("nginx", ["-v"])):
        path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
        if path:
            check(" ".join([name] + arguments), [path] + arguments)
        else:
            print("not installed here:", name)

    for order in (f"{early} {library}", f"{library} {early}"):
        check("constructor of another library, " + " ".join(map(os.path.basename, order.split())), ["/bin/true"], order)

    allocators = [p for p in (LIBDIR + "/libjemalloc.so.2", LIBDIR + "/libtcmalloc_minimal.so.4") if os.path.exists(p)]
    if not allocators:
        print("not installed here: libjemalloc2, libtcmalloc-minimal4")
    for allocator in allocators:
        for order in (f"{allocator} {library}", f"{library} {allocator}"):
            what = " + ".join(map(os.path.basename, order.split()))
            check(what + ": sh", ["/bin/sh", "-c", "echo hi | cat"], order)
            check(what + ": python", [python, "-c", UNIX_SOCKETS], order, stdout=b"done\n")
            check(what + ": constructor", ["/bin/true"], f"{order} {early}")

    # Secure execution: the loader ignores a preload path for a set-user-id program, which then runs as if we were not there.
    if os.geteuid() == 0:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            os.chmod(directory, 0o755)
            copy = os.path.join(directory, "id")
            shutil.copy("/usr/bin/id", copy)
            os.chown(copy, 65534, 65534)
            os.chmod(copy, 0o755 | stat.S_ISUID)
            check("set-user-id program", [copy, "-u"], stdout=b"65534\n")
    else:
        print("not root: the set-user-id case was not run")
    return 1 if failures else 0


sys.exit(main())
