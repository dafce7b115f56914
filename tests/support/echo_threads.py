"""echo_threads.py IP PORT: a thread for each connection sends everything back, then ends it. Runs until it is killed."""

import contextlib
import socket
import sys
import threading

from duplex import echo_blocking


def serve(s):
    with s, contextlib.suppress(OSError):
        echo_blocking(s)


listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=512)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
