"""idle_server.py udp|tcp IP PORT COUNT: COUNT UDP sockets on consecutive ports, or one listener and COUNT connections, in
one blocking epoll. Echoes; prints "ready" when bound and "served COUNT" once each socket has echoed once."""

import resource
import select
import socket
import sys

protocol, ip, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, 2 * count), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
epoll = select.epoll()
sockets, seen, listener = {}, set(), None
if protocol == "udp":
    for i in range(count):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((ip, port + i))
        sockets[s.fileno()] = s
        epoll.register(s, select.EPOLLIN)
else:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((ip, port))
    listener.listen(count)
    epoll.register(listener, select.EPOLLIN)
print("ready", flush=True)
while True:
    for fd, _ in epoll.poll():
        if listener and fd == listener.fileno():
            s, _ = listener.accept()
            sockets[s.fileno()] = s
            epoll.register(s, select.EPOLLIN)
            continue
        s = sockets[fd]
        data, peer = s.recvfrom(2048)
        if not data and protocol == "tcp":
            epoll.unregister(s)
            s.close()
            del sockets[fd]
            continue
        s.sendto(data, peer) if protocol == "udp" else s.send(data)
        if fd not in seen:
            seen.add(fd)
            if len(seen) == count:
                print(f"served {count}", flush=True)
