"""tcp_obey.py IP PORT: a server that does what a connection's first line says, each in a thread of its own:

  send N       sends N bytes of a known text (byte i is i * 7 % 251)
  take N       receives N bytes, answers with them
  close        closes at once, first

Prints "ready" and, for whatever goes wrong, a line.
"""

import resource
import sys
import threading

from listening import served_at

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def line_of(s):
    line = b""
    while not line.endswith(b"\n"):
        byte = s.recv(1)
        if not byte:
            return b""
        line += byte
    return line


def obey(s):
    try:
        with s:
            words = line_of(s).split()
            if words[:1] == [b"send"]:
                n = int(words[1])
                s.sendall((bytes(i * 7 % 251 for i in range(251)) * (n // 251 + 1))[:n])
                while s.recv(4096):
                    pass
            elif words[:1] == [b"take"]:
                got = b""
                while len(got) < int(words[1]):
                    piece = s.recv(65536)
                    if not piece:
                        break
                    got += piece
                s.sendall(got)
                while s.recv(4096):
                    pass
    except OSError as error:
        print("ended by", error, flush=True)


listener = served_at(sys.argv[1], sys.argv[2], backlog=4096)
print("ready", flush=True)
while True:
    s, _ = listener.accept()
    if sys.argv[3:] == ["close"]:
        s.close()
    else:
        threading.Thread(target=obey, args=(s,), daemon=True).start()
