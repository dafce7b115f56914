"""idle_client.py udp|tcp IP PORT COUNT: one message to each socket of idle_server.py, answer awaited (a lost datagram is
sent again), then quiet with all connections open until killed."""

import resource
import signal
import socket
import sys

protocol, ip, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, 2 * count), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = []
if protocol == "udp":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.5)
    for i in range(count):
        for _ in range(10):
            s.sendto(b"once", (ip, port + i))
            try:
                s.recv(64)
                break
            except TimeoutError:
                continue
        else:
            sys.exit(f"no answer from port {port + i}")
else:
    for i in range(count):
        s = socket.create_connection((ip, port), 10)
        s.send(b"once")
        s.recv(64)
        kept.append(s)
print("quiet", flush=True)
signal.pause()
