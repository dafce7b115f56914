"""Listeners that the library serves: it does so from a process's first accept() on."""

import socket


def served(listener):
    """The listener, after an accept() that found nothing; it blocks afterwards. Nobody must know of it yet."""
    listener.setblocking(False)
    try:
        listener.accept()
        raise AssertionError("a connection before anybody was told")
    except BlockingIOError:
        pass
    listener.setblocking(True)
    return listener


def served_at(ip, port, backlog=None):
    return served(socket.create_server((ip, int(port)), backlog=backlog))
