"""Full-duplex byte streams with known content, and ways to echo them. The test's end sends `pattern(seed, n)` and checks what
comes back while it is still sending; the subject's end is echo(), by blocking calls, non-blocking calls or epoll.
"""

import errno
import os
import select
import socket
import struct
import threading

LIMIT = int(20 * float(os.environ.get("VMA_TEST_SLOW", "1")))  # seconds that any one step may take
FIRST = 100_000  # bytes that are echoed before a test begins with its subject


def pattern(seed, n):
    unit = bytes((i * 31 + seed * 7 + (i >> 8)) & 0xff for i in range(65521))
    return (unit * (n // len(unit) + 1))[:n]


def exchange(s, seed, n, half_close=True):
    """Sends the pattern, reads until the end (half_close) or until n bytes are back. Raises AssertionError on a difference."""
    s.settimeout(LIMIT)
    data, back, failed = pattern(seed, n), bytearray(), []

    def read():
        try:
            while half_close or len(back) < n:
                piece = s.recv(65536)
                if not piece:
                    return
                back.extend(piece)
        except OSError as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        s.sendall(data)
        if half_close:
            s.shutdown(socket.SHUT_WR)
    except OSError as error:
        failed.append(error)
        s.close()
    reader.join(2 * LIMIT)
    if failed:
        raise AssertionError(f"seed {seed}: {failed[0]!r} after {len(back)} of {n} bytes came back")
    if back != data:
        same = next((i for i, (x, y) in enumerate(zip(back, data)) if x != y), min(len(back), n))
        raise AssertionError(f"seed {seed}: {len(back)} of {n} bytes came back, the first {same} are right")


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def echo_blocking(s, limit=None):
    s.setblocking(True)
    while limit is None or limit:
        piece = s.recv(65536 if limit is None else min(65536, limit))
        if not piece:
            return
        if limit is not None:
            limit -= len(piece)
        s.sendall(piece)


def _ready_by_poll(s, want):
    p = select.poll()
    p.register(s, want)
    if not p.poll(LIMIT * 1000):
        raise TimeoutError(f"poll for {want}")


def echo_nonblocking(s, limit=None, ready=_ready_by_poll):
    s.setblocking(False)
    waiting, ended = b"", False
    while waiting or (not ended and limit != 0):
        if waiting:
            try:
                waiting = waiting[s.send(waiting):]
                continue
            except BlockingIOError:
                ready(s, select.POLLOUT)
                continue
        try:
            waiting = s.recv(65536 if limit is None else min(65536, limit))
        except BlockingIOError:
            ready(s, select.POLLIN)
            continue
        if not waiting:
            ended = True
        elif limit is not None:
            limit -= len(waiting)


def echo_by(ep, s, limit=None):
    """By an epoll set that has the socket already."""
    def ready(member, want):
        ep.modify(member, want)
        if not ep.poll(LIMIT):
            raise TimeoutError(f"epoll for {want}")

    echo_nonblocking(s, limit, ready)


def echo_epoll(s, limit=None):
    with select.epoll() as ep:
        ep.register(s, 0)
        echo_by(ep, s, limit)


ECHO = {"blocking": echo_blocking, "nonblocking": echo_nonblocking, "epoll": echo_epoll}


def served_by_kernel(s):
    """Is this connection one of the kernel's? Its table has the tuple as established or half-closed then."""
    (_, port), (_, peer) = s.getsockname(), s.getpeername()
    with open("/proc/thread-self/net/tcp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            local, remote, state = fields[1], fields[2], fields[3]
            if int(local.split(":")[1], 16) == port and int(remote.split(":")[1], 16) == peer:
                return state in ("01", "04", "05", "08")
    return False


def must_be_offloaded(s):
    if "libvma" in os.environ.get("LD_PRELOAD", "") and served_by_kernel(s):
        raise AssertionError("the connection is the kernel's already")


def must_be_kernel(s):
    if not served_by_kernel(s):
        raise AssertionError("the connection is not in the kernel's table")


def dial(ip, port):
    return socket.create_connection((ip, port), LIMIT)


def begun(ip, port, first=FIRST):
    """A connection whose first bytes were echoed: live, and not the kernel's when preloaded."""
    s = dial(ip, port)
    s.settimeout(None)
    echo_blocking(s, first)
    must_be_offloaded(s)
    return s


def in_child(pid, work):
    """Runs work in the child that pid says this is; its exit status tells whether it went well."""
    if pid != 0:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def ended(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"child: wait status {status}"


def is_reset(error):
    return error.errno in (errno.ECONNRESET, errno.EPIPE)
