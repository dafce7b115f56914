"""memcached_load.py IP PORT THREADS ROUNDS SEED: every thread has a connection and its own keys and knows what each answer
must be; all of them count one shared number up and append to one shared value by compare-and-swap. Ends with "good"."""

import random
import socket
import sys
import threading

import duplex


class Client:
    def __init__(self, ip, port):
        self.s = duplex.dial(ip, port)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.s.makefile("rb")

    def line(self):
        text = self.lines.readline()
        if not text.endswith(b"\r\n"):
            raise AssertionError(f"the connection ended: {text!r}")
        return text[:-2]

    def tell(self, data):
        self.s.sendall(data)

    def must(self, want):
        got = self.line()
        if got != want:
            raise AssertionError(f"{got[:100]!r} instead of {want!r}")

    def set(self, key, value):
        self.tell(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        self.must(b"STORED")

    def get(self, *keys, word=b"get"):
        """{key: (value, cas or None)} of those that are there."""
        self.tell(b"%s %s\r\n" % (word, b" ".join(keys)))
        found = {}
        while (head := self.line()) != b"END":
            fields = head.split()
            assert fields[0] == b"VALUE", head
            body = self.lines.read(int(fields[3]) + 2)
            assert body[-2:] == b"\r\n", "a value's end"
            found[fields[1]] = body[:-2], int(fields[4]) if len(fields) > 4 else None
        return found


def appended(c, key, text):
    """Compare-and-swap until it is ours."""
    while True:
        value, cas = c.get(key, word=b"gets")[key]
        new = value + text
        c.tell(b"cas %s 0 0 %d %d\r\n%s\r\n" % (key, len(new), cas, new))
        answer = c.line()
        if answer == b"STORED":
            return
        assert answer == b"EXISTS", answer


def work(ip, port, number, rounds, seed):
    rng = random.Random(f"{seed} {number}")
    c, mine = Client(ip, port), {}
    for i in range(rounds):
        key = b"k%d.%d" % (number, rng.randrange(50))
        size = rng.choice((0, 1, 10, 100, 1000, 10000, 100000 if i % 10 == 0 else 5000))
        mine[key] = rng.randbytes(size)
        c.set(key, mine[key])
        asked = rng.sample(sorted(mine), min(len(mine), 5))
        found = c.get(*asked, b"absent%d" % number)
        assert {k: v for k, (v, _) in found.items()} == {k: mine[k] for k in asked}, "another value came back"
        c.tell(b"incr shared 1\r\n" * 5)  # five requests in one segment
        numbers = [int(c.line()) for _ in range(5)]
        assert numbers == sorted(set(numbers)), numbers
        if i % 20 == 0:
            appended(c, b"list", b"%d.%d;" % (number, i))
    c.tell(b"quit\r\n")
    assert c.lines.read() == b"", "more after quit"


def main():
    ip, port, threads, rounds, seed = sys.argv[1], *map(int, sys.argv[2:6])
    print(f"seed {seed}", flush=True)
    first = Client(ip, port)
    first.set(b"shared", b"0")
    first.set(b"list", b"")
    failed = []

    def guarded(number):
        try:
            work(ip, port, number, rounds, seed)
        except BaseException as error:
            failed.append(f"thread {number}: {error!r}")

    crowd = [threading.Thread(target=guarded, args=(n,)) for n in range(threads)]
    for t in crowd:
        t.start()
    for t in crowd:
        t.join()
    assert not failed, failed
    found = first.get(b"shared", b"list")
    assert int(found[b"shared"][0]) == 5 * threads * rounds, found[b"shared"]
    entries = found[b"list"][0].decode().strip(";").split(";")
    assert sorted(entries) == sorted(f"{n}.{i}" for n in range(threads) for i in range(0, rounds, 20)), entries
    print("good", flush=True)


if __name__ == "__main__":
    main()
