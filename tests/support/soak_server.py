"""soak_server.py KIND IP PORT: an echo server that does to its connections what programs do. SIGTERM ends it ("stopped").
SIGUSR1: what python and malloc keep for later goes back to the system ("settled N", N counts); what is resident then is held.

The first byte of a connection says what happens in the middle of it:
  e  nothing           h  it becomes descriptor 0 for a moment: the kernel goes on with it
  c  a command is run  r  the server resets it
plain    one process, epoll; its listener stays on the ring
forking  a child for each connection; e, h, c, r there; x  the child becomes cat
"""

import contextlib
import ctypes
import gc
import itertools
import os
import select
import signal
import socket
import subprocess
import sys

from duplex import echo_nonblocking, reset

FIRST = 4000  # bytes before it happens


class Stop(Exception):
    pass


def stop(*_):
    raise Stop


def settle(*_):
    gc.collect()
    malloc_trim(0)
    print(f"settled {next(settled)}", flush=True)


def happen(s, what):
    """True: the connection is over."""
    if what == b"h":
        os.dup2(s.fileno(), 0)
        os.dup2(devnull, 0)
    elif what == b"c":
        subprocess.run(["true"], check=True)
    elif what == b"r":
        reset(s)
        return True
    return False


class Talk:
    """One connection of the epoll server: echoes, keeps what the peer does not take yet."""

    def __init__(self, s):
        self.s, self.what, self.echoed, self.waiting, self.ended = s, None, 0, bytearray(), False

    def turn(self):
        """Does what can be done now; the events to wait for, or None when it is over."""
        with contextlib.suppress(BlockingIOError):
            while not self.ended and len(self.waiting) < 1 << 18:
                piece = self.s.recv(65536)
                self.ended = not piece
                if self.what is None and piece:
                    self.what, piece = piece[:1], piece[1:]
                self.waiting += piece
        with contextlib.suppress(BlockingIOError):
            while self.waiting:
                sent = self.s.send(self.waiting)
                del self.waiting[:sent]
                self.echoed += sent
        if self.what not in (None, b"e") and self.echoed >= FIRST:
            if happen(self.s, self.what):
                return None
            self.what = b"e"
        if self.ended and not self.waiting:
            return None
        return (0 if self.ended else select.EPOLLIN) | (select.EPOLLOUT if self.waiting else 0)


def plain(listener):
    listener.setblocking(False)
    talks = {}
    with select.epoll() as ep:
        ep.register(listener, select.EPOLLIN)
        while True:
            for fd, _ in ep.poll():
                if fd == listener.fileno():
                    with contextlib.suppress(BlockingIOError):
                        s, _ = listener.accept()
                        s.setblocking(False)
                        talks[s.fileno()] = Talk(s)
                        ep.register(s, select.EPOLLIN)
                    continue
                talk = talks[fd]
                try:
                    events = talk.turn()
                except OSError:
                    events = None
                if events is None:
                    del talks[fd]
                    if talk.s.fileno() >= 0:
                        talk.s.close()
                else:
                    ep.modify(fd, events)


def child(s):
    what = s.recv(1)
    if what == b"x":
        os.dup2(s.fileno(), 0)
        os.dup2(s.fileno(), 1)
        s.close()
        os.execvp("cat", ["cat"])
    echo_nonblocking(s, FIRST)
    if not happen(s, what):
        echo_nonblocking(s)
        s.close()


def forking(listener):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        s, _ = listener.accept()
        if os.fork() == 0:
            status = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                child(s)
                status = 0
            finally:
                os._exit(status)
        s.close()


malloc_trim, settled = ctypes.CDLL(None).malloc_trim, itertools.count(1)
devnull = os.open("/dev/null", os.O_RDWR)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, settle)
with contextlib.suppress(Stop):
    made = socket.create_server((sys.argv[2], int(sys.argv[3])), backlog=512)
    print("ready", flush=True)
    {"plain": plain, "forking": forking}[sys.argv[1]](made)
print("stopped", flush=True)
