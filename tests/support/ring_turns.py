"""ring_turns.py IP PORT KIND THREADS: THREADS threads use one socket, one after the other: the next one goes on where the one before
left off at each line of standard input. Prints "0_0 FD" of the socket, "ready PID", and at each change "turn T". What comes is
looked at as it comes, and sent back:

    udp      bound to IP and PORT: datagrams are numbers from 0 on, in order
    member   the same, in group 239.7.7.7
    accept   a connection that the first thread accepts at PORT: pieces of 1000 bytes of a stream in which byte i is i % 251
    split    the same, and a thread of its own sends it back
    connect  the same of a connection to PEER of the environment, PORT

Prints "wrong ..." and ends where something is not as it must be. Ends at the end of standard input: with DIE in the environment it
first writes to the connection as many pieces from 0 on as fit, prints "written N", and kills itself.
"""

import os
import queue
import signal
import socket
import sys
import threading

PIECE = 1000
CYCLE = bytes(range(251)) * 5


def piece(number):
    at = number * PIECE % 251
    return CYCLE[at:at + PIECE]


def main():
    ip, port, kind, threads = sys.argv[1:]
    port, threads = int(port), int(threads)
    is_stream = kind in ("accept", "split", "connect")
    turn, changed, done = [0], threading.Condition(), [0]
    listener = socket.create_server((ip, port)) if kind in ("accept", "split") else None
    if listener:
        print("listening", flush=True)

    def expect(got, wanted):
        if got != wanted:
            print("wrong", done[0], got[:40], "for", wanted[:40], flush=True)
            os._exit(1)

    def made():
        if not is_stream:
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.bind((ip, port))
            if kind == "member":
                s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.7.7.7") + socket.inet_aton(ip))
            return s
        return listener.accept()[0] if listener else socket.create_connection((os.environ["PEER"], port))

    def serve(s, t):
        while turn[0] == t:
            if not is_stream:
                data, peer = s.recvfrom(2048)
                expect(data, b"%d" % done[0])
                s.sendto(data, peer)
            else:
                data = s.recv(PIECE, socket.MSG_WAITALL)
                if not data:
                    return
                expect(data, piece(done[0]))
                if kind == "split":
                    answers.put(data)
                else:
                    s.sendall(data)
            done[0] += 1

    def run(t):
        if t == 0:
            sockets.append(made())
            threading.Thread(target=answer, daemon=True).start()
            print("0_0", sockets[0].fileno(), flush=True)
            print("ready", os.getpid(), flush=True)
        for mine in range(t, 1 << 30, threads):
            with changed:
                changed.wait_for(lambda: turn[0] >= mine and running[0] is None)
                running[0] = t
            print("turn", mine, flush=True)
            serve(sockets[0], mine)
            with changed:
                running[0] = None
                changed.notify_all()

    def answer():
        while True:
            sockets[0].sendall(answers.get())

    sockets, running, answers = [], [None], queue.SimpleQueue()
    for t in range(threads):
        threading.Thread(target=run, args=(t,), daemon=True).start()
    for _ in sys.stdin:
        with changed:
            turn[0] += 1
            changed.notify_all()
    if "DIE" in os.environ:
        written = 0
        try:
            while True:
                written += sockets[0].send(piece(written // PIECE)[written % PIECE:], socket.MSG_DONTWAIT)
        except BlockingIOError:
            print("written", written, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


main()
