"""udp_late.py HOW IP PORT COUNT: a client whose socket is decided late. Prints how many answers came.

recv, select, poll, epoll: a thread waits on the unbound socket before the main thread's first send binds it. reuseport:
bound with SO_REUSEPORT like dig, then connected. reuseport-server: bound with SO_REUSEPORT, never connected; echoes COUNT.
"""

import select
import socket
import sys
import threading

how, ip, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def wait():
    if how == "select":
        return bool(select.select([s], [], [], 10)[0])
    if how == "poll":
        poll = select.poll()
        poll.register(s, select.POLLIN)
        return bool(poll.poll(10000))
    if how == "epoll":
        with select.epoll() as epoll:
            epoll.register(s, select.EPOLLIN)
            return bool(epoll.poll(10))
    return True


def asleep(tid):
    with open(f"/proc/self/task/{tid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "S"


if how.startswith("reuseport"):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.settimeout(10)
if how == "reuseport-server":
    s.bind((ip, port))
    print("ready", flush=True)
    for _ in range(count):
        data, peer = s.recvfrom(2048)
        s.sendto(data, peer)
    sys.exit(0)
if how == "reuseport":
    s.bind(("0.0.0.0", 0))
    s.connect((ip, port))
    for i in range(count):
        s.send(b"%d" % i)
        assert s.recv(100) == b"%d" % i
    print(count, flush=True)
    sys.exit(0)

answers, news = [], threading.Semaphore(0)


def receiver():
    for _ in range(count):
        if not wait():
            break
        answers.append(s.recv(100))
        news.release()


thread = threading.Thread(target=receiver, daemon=True)
thread.start()
while not asleep(thread.native_id):
    pass
for i in range(count):
    s.sendto(b"%d" % i, (ip, port))
    if not news.acquire(timeout=5):
        break
print(sum(a == b"%d" % i for i, a in enumerate(answers)))
