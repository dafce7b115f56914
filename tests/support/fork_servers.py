"""fork_servers.py KIND IP PORT [N]: echo servers that are made of processes. SIGTERM ends them in order ("stopped").

per_connection  a child for each connection, the parent accepts
prefork         N workers accept on the listener that the parent made; the parent only waits
pool            multiprocessing.Pool workers (fork) get connections passed by SCM_RIGHTS
half_open       told by a line, forks; the child accepts one connection, the parent the next
forkserver      a process started by multiprocessing's fork server gets the listener and serves
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys

from duplex import echo_blocking


class Stop(Exception):
    pass


def stop(*_):
    raise Stop


def listen(ip, port):
    listener = socket.create_server((ip, port), backlog=512)
    return listener


def serve(s):
    with s:
        echo_blocking(s)


def per_connection(ip, port, _):
    listener = listen(ip, port)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    print("ready", flush=True)
    with contextlib.suppress(Stop):
        while True:
            s, _ = listener.accept()
            if os.fork() == 0:
                status = 1
                try:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    listener.close()
                    serve(s)
                    status = 0
                finally:
                    os._exit(status)
            s.close()
    print("stopped", flush=True)


def prefork(ip, port, workers):
    listener = listen(ip, port)
    children = []
    for _ in range(workers):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while True:
                serve(listener.accept()[0])
        children.append(pid)
    listener.close()
    print("ready", flush=True)
    with contextlib.suppress(Stop):
        signal.pause()
    for pid in children:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    print("stopped", flush=True)


def begin_worker():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pool(ip, port, workers):
    listener = listen(ip, port)
    with multiprocessing.get_context("fork").Pool(workers, begin_worker) as crew:
        print("ready", flush=True)
        with contextlib.suppress(Stop):
            while True:
                s, _ = listener.accept()
                # Pickled as a descriptor that the worker asks for; ours stays open until it is done.
                crew.apply_async(serve, (s,), callback=lambda _, s=s: s.close())
    print("stopped", flush=True)


def half_open(ip, port, _):
    listener = listen(ip, port)
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        listener.accept()  # a listener is served by the library from the first accept on
    listener.setblocking(True)
    print("ready", flush=True)
    sys.stdin.readline()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            serve(listener.accept()[0])
            status = 0
        finally:
            os._exit(status)
    print("forked", flush=True)
    assert os.waitpid(pid, 0)[1] == 0
    serve(listener.accept()[0])
    print("stopped", flush=True)


def serve_for_ever(listener):
    while True:
        serve(listener.accept()[0])


def forkserver(ip, port, _):
    listener = listen(ip, port)
    worker = multiprocessing.get_context("forkserver").Process(target=serve_for_ever, args=(listener,), daemon=True)
    worker.start()
    listener.close()
    print("ready", flush=True)
    with contextlib.suppress(Stop):
        signal.pause()
    worker.terminate()
    worker.join(10)
    print("stopped", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    kind = {f.__name__: f for f in (per_connection, prefork, pool, half_open, forkserver)}[sys.argv[1]]
    kind(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 4)
