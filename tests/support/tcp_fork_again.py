"""A connection that two children in a row want to use; only the second can have it.  argv: kind address port

refused  the first asks while the connection is being made, which cannot move then
adopted  after the first it goes to the kernel and comes back (preloaded with libvma_move.so)
"""

import ctypes
import os
import select
import socket
import sys


def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as error:
            print("child:", error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket()
if kind == "refused":
    s.setblocking(False)
    s.connect_ex((address, port))
    assert in_child(lambda: s.send(b"too early")) != 0
    print("the first has asked", flush=True)
    assert select.select([], [s], [], 20)[1]
    s.setblocking(True)
else:
    s.connect((address, port))
    assert in_child(lambda: None) == 0
    move = ctypes.CDLL(None).vma_test_move
    assert move(s.fileno(), 1, 0) == 1
    assert move(s.fileno(), 0, 0) == 1
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
s.sendall(b"parent, ")
assert in_child(lambda: s.sendall(b"child, ")) == 0, "the second child has no connection"
s.sendall(b"parent")
s.close()
print("done", flush=True)
