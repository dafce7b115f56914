"""A program of one thread that gives privileges up in every order, and serves its sockets by epoll.  argv: address

bind PORT | listen-bound PORT   a TCP socket; it listens only by the second
listen PORT                     both
listen-only PORT                a listener that nobody accepts from until: accept PORT
connect ADDR PORT               begins a connection; every connection echoes
euid N, uid N                   seteuid; setgroups, setgid and setuid
raw-uid N                       setresuid as a bare system call: of this thread only
thread-uid N                    the same in a thread of its own, which then ends
keep                            PR_SET_KEEPCAPS
caps NAME...                    capset: these and no others, permitted and effective; none: none at all
limit NAME N                    setrlimit, soft and hard
chroot FOLDER
filter                          a system call filter that kills for capget(2), and allows everything else
new-user                        unshare(CLONE_NEWUSER), which is for programs of one thread
unseen SECONDS WORD             sends WORD to the last connection, then sleeps without a call that the library sees
threads                         prints user, effective capabilities and seccomp of each thread
Each is answered by "did" and its own words, or "failed".
"""

import ctypes
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as in programs that are not Python
libc = ctypes.CDLL(None, use_errno=True)
SYS_CAPGET, SYS_SETRESUID = 125, 117  # x86-64
NUMBERS = {"setgid": 6, "setuid": 7, "net_bind_service": 10, "net_admin": 12, "net_raw": 13, "sys_admin": 21}
PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 8, 22, 38

address = sys.argv[1]
poll = select.epoll()
sockets = {}
listeners = {}
last = None


def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def add(s):
    sockets[s.fileno()] = s
    poll.register(s.fileno(), select.EPOLLIN)


def bind(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, int(port)))
    s.setblocking(False)
    listeners[port] = s


def listen_bound(port):
    listeners[port].listen(64)
    add(listeners[port])


def listen_only(port):
    bind(port)
    listeners[port].listen(64)


def connect(host, port):
    global last
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.settimeout(10)
    s.connect((host, int(port)))
    s.setblocking(False)
    last = s
    add(s)


def uid(number):
    os.setgroups([])
    os.setgid(int(number))
    os.setuid(int(number))


def raw_uid(number):
    checked(libc.syscall(SYS_SETRESUID, int(number), int(number), int(number)))


def thread_uid(number):
    thread = threading.Thread(target=raw_uid, args=(number,))
    thread.start()
    thread.join()


def caps(*names):
    head = struct.pack("Ii", 0x20080522, 0)
    mask = sum(1 << NUMBERS[name] for name in names)
    low, high = mask & 0xffffffff, mask >> 32
    checked(libc.capset(head, struct.pack("6I", low, low, 0, high, high, 0)))


def limit(name, number):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (int(number), int(number)))


def change_root(folder):
    os.chroot(folder)
    os.chdir("/")


def install_filter():
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    code = ((0x20, 0, 0, 0), (0x15, 0, 1, SYS_CAPGET), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000))
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(steps)))
    checked(libc.prctl(PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0))


def new_user():
    checked(libc.unshare(0x10000000))  # CLONE_NEWUSER


def unseen(seconds, word):
    last.send(word.encode())
    time.sleep(float(seconds))


def threads():
    for task in sorted(os.listdir("/proc/self/task"), key=int):
        with open(f"/proc/self/task/{task}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        print("thread", fields["Name"].strip(), "user", fields["Uid"].split()[1], "caps", fields["CapEff"].strip(), "seccomp",
              fields["Seccomp"].strip())


COMMANDS = {
    "listen-only": listen_only, "accept": lambda port: add(listeners[port]),
    "bind": bind, "listen-bound": listen_bound, "listen": lambda port: (bind(port), listen_bound(port)), "connect": connect,
    "euid": lambda n: os.seteuid(int(n)), "uid": uid, "raw-uid": raw_uid, "thread-uid": thread_uid, "caps": caps, "limit": limit,
    "keep": lambda: checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)), "chroot": change_root, "filter": install_filter,
    "new-user": new_user, "unseen": unseen, "threads": threads}


def command(line):
    words = line.split()
    try:
        COMMANDS[words[0]](*words[1:])
        print("did", *words, flush=True)
    except OSError as error:
        print("failed", *words, error, flush=True)


def served(s):
    global last
    if s in listeners.values():
        s, _ = s.accept()
        s.setblocking(False)
        last = s
        return add(s)
    data = s.recv(65536)
    if data:
        return s.sendall(data)
    poll.unregister(s.fileno())
    del sockets[s.fileno()]
    s.close()


poll.register(0, select.EPOLLIN)
print("ready", flush=True)
text = b""
while True:
    for fd, _ in poll.poll():
        if fd in sockets:
            served(sockets[fd])
            continue
        piece = os.read(0, 4096)
        if not piece:
            sys.exit(0)
        text += piece
        while b"\n" in text:
            line, text = text.split(b"\n", 1)
            command(line.decode())
