"""A program that gives its privileges up, and does what it is told on standard input.  argv: address

drop                become www-data
listen PORT         a listener, kept; every connection is echoed by a thread
bind PORT           a TCP socket that is bound, and listens only by:
listen-bound PORT
close PORT          closes the listener
connect ADDR PORT   connects, echoes in a thread
udp PORT            a UDP socket that echoes in a thread
fork                the child goes on with the commands, the parent sleeps
Each is answered by its own words, or by an error.
"""

import os
import socket
import sys
import threading
import time

address = sys.argv[1]
kept = {}


def echo(connection):
    while True:
        data = connection.recv(65536)
        if not data:
            break
        connection.sendall(data)
    connection.close()


def background(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def serve(listener, stop):
    listener.settimeout(0.05)
    while not stop.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        background(echo, connection)


def echo_datagrams(s):
    while True:
        data, peer = s.recvfrom(2048)
        s.sendto(data, peer)


def bound(kind, port):
    s = Socket(socket.AF_INET, kind)
    if kind == socket.SOCK_STREAM:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    return s


def listen(s):
    s.listen(64)
    s.stop = threading.Event()
    s.thread = background(serve, s, s.stop)


def close(s):
    # As long as a thread is in accept() the listener is there, in Linux as well.
    s.stop.set()
    s.thread.join()
    s.close()


class Socket(socket.socket):
    stop = thread = None


def do(word, args):
    if word == "drop":
        os.setgroups([])
        os.setgid(33)
        os.setuid(33)
    elif word == "bind":
        kept[args[0]] = bound(socket.SOCK_STREAM, int(args[0]))
    elif word == "listen-bound":
        listen(kept[args[0]])
    elif word == "listen":
        kept[args[0]] = bound(socket.SOCK_STREAM, int(args[0]))
        begin = time.perf_counter()
        listen(kept[args[0]])
        print("listen took %.0f us" % ((time.perf_counter() - begin) * 1e6), flush=True)
    elif word == "close":
        close(kept.pop(args[0]))
    elif word == "connect":
        begin = time.perf_counter()
        s = socket.create_connection((args[0], int(args[1])), timeout=10)
        print("connect took %.0f us" % ((time.perf_counter() - begin) * 1e6), flush=True)
        s.settimeout(None)
        background(echo, s)
    elif word == "udp":
        background(echo_datagrams, bound(socket.SOCK_DGRAM, int(args[0])))
    elif word == "fork":
        if os.fork() != 0:
            os.wait()
            os._exit(0)
    else:
        raise ValueError(word)


print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    try:
        do(words[0], words[1:])
        print("did", *words, flush=True)
    except OSError as error:
        print("failed", *words, error, flush=True)
