"""ring_threads.py IP PORT KIND WAIT THREADS SOCKETS [pin] [user]: THREADS threads, one after the other, make SOCKETS sockets each,
print "T_S FD" for each and then serve their own until the program ends. KIND:

    udp      bound to IP and the next port from PORT on: each datagram goes back
    group    members of 239.7.7.7 on IP, bound to PORT: prints "got T_S N" at the datagram "end"
    connect  connections to PEER of the environment, PORT: what comes goes back
    accept   thread 0 alone, a listener at PORT: as many connections are accepted, and what comes goes back

WAIT: recv (one socket a thread), poll, select or epoll. pin: thread T is bound to the T-th CPU, in turn, before. user: socket S
asks for the ring of user S (SO_VMA_RING_ALLOC_LOGIC). Prints "ready PID", and "cpus_T N" for the CPUs that a thread may
use then. Ends at the end of standard input.
"""

import os
import select
import socket
import struct
import sys
import threading

RING_ALLOC_LOGIC, USER, WITH_USER_AND_BOTH, BOTH = 2810, 11, 2 | 4 | 8, 3


class Waiting:
    def __init__(self, how, sockets):
        self.how, self.sockets = how, {s.fileno(): s for s in sockets}
        if how in ("poll", "epoll"):
            self.set = select.poll() if how == "poll" else select.epoll()
            for fd in self.sockets:
                self.set.register(fd, select.POLLIN)

    def readable(self):
        if self.how == "recv":
            return list(self.sockets.values())
        if self.how == "select":
            return select.select(list(self.sockets.values()), [], [])[0]
        return [self.sockets[fd] for fd, _ in self.set.poll()]


def serve(kind, how, sockets):
    waiting, count = Waiting(how, sockets.values()), dict.fromkeys(sockets.values(), 0)
    names = {s: name for name, s in sockets.items()}
    while True:
        for s in waiting.readable():
            data, peer = s.recvfrom(2048)
            count[s] += 1
            if kind == "udp":
                s.sendto(data, peer)
            elif kind != "group":
                s.sendall(data)
            elif data == b"end":
                print(f"got {names[s]} {count[s]}", flush=True)


def made(kind, ip, port, user):
    if kind == "accept":
        return None
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "connect" else socket.SOCK_DGRAM)
    if user is not None:
        s.setsockopt(socket.SOL_SOCKET, RING_ALLOC_LOGIC, struct.pack("5I", WITH_USER_AND_BOTH, USER, 0, user, BOTH))
    if kind == "connect":
        s.connect((os.environ["PEER"], port))
    elif kind == "udp":
        s.bind((ip, port))
    else:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("0.0.0.0", port))
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.7.7.7") + socket.inet_aton(ip))
    return s


def main():
    ip, port, kind, how, threads, each, *rest = sys.argv[1:]
    port, threads, each = int(port), int(threads), int(each)
    cpus, turn, ends = sorted(os.sched_getaffinity(0)), threading.Semaphore(0), threading.Event()

    def run(t):
        if "pin" in rest:
            os.sched_setaffinity(0, [cpus[t % len(cpus)]])
        sockets = {}
        if kind == "accept":
            listener = socket.create_server((ip, port))
            sockets["listener"] = listener
            print("listener", listener.fileno(), flush=True)
            print("listening", flush=True)
        for s in range(each):
            number = t * each + s
            sockets[f"{t}_{s}"] = made(kind, ip, port + (number if kind == "udp" else 0), s if "user" in rest else None) or \
                listener.accept()[0]
            print(f"{t}_{s}", sockets[f"{t}_{s}"].fileno(), flush=True)
        print(f"cpus_{t}", len(os.sched_getaffinity(0)), flush=True)
        turn.release()
        ends.wait()
        sockets.pop("listener", None)
        serve(kind, how, sockets)

    for t in range(threads):
        threading.Thread(target=run, args=(t,), daemon=True).start()
        turn.acquire()
    print("ready", os.getpid(), flush=True)
    ends.set()
    sys.stdin.read()


main()
