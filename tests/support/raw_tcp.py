"""A TCP peer made of raw frames: it does what it is told, right or wrong. It lives at an address that no kernel has, so
nobody else answers; the caller gives the other end a permanent neighbour entry for it.

    peer = RawPeer(space, ip, mac_of_the_server, server_ip, port)
    peer.open(mss=536); peer.send(data=b"hello"); peer.take(5)

seq and ack are absolute; peer.seq is our next number, peer.ack what we expect. All waits are bounded.
"""

import select
import socket
import struct
import time

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MASK = 0xffffffff


def sum16(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


class Segment:
    def __init__(self, packet):
        header = packet[0] % 16 * 4
        total, tcp = struct.unpack_from("!H", packet, 2)[0], packet[header:]
        self.port, self.peer_port, self.seq, self.ack, offset, self.flags, self.window = struct.unpack_from("!HHIIBBH", tcp)
        self.data = tcp[offset // 16 * 4:total - header]
        self.stamp = None
        options = tcp[20:offset // 16 * 4]
        self.mss = 536
        while options:
            if options[0] < 2:
                options = options[1:]
                continue
            if options[0] == 8:
                self.stamp = struct.unpack_from("!II", options, 2)
            elif options[0] == 2:
                self.mss = struct.unpack_from("!H", options, 2)[0]
            options = options[max(options[1], 2):]

    def __repr__(self):
        return f"<flags {self.flags:02x} seq {self.seq} ack {self.ack} len {len(self.data)} window {self.window}>"


class RawPeer:
    def __init__(self, space, ip, mac, server, port, local_port):
        self.space, self.port, self.local_port = space, port, local_port
        self.addresses = socket.inet_aton(ip), socket.inet_aton(server)
        own = bytes.fromhex(space.run(["cat", f"/sys/class/net/{space.dev}/address"]).out.strip().replace(":", ""))
        self.ethernet = bytes.fromhex(mac.replace(":", "")) + own + b"\x08\x00"
        self.raw = space.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.raw.bind((space.dev, 0x0800))
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.seq, self.ack, self.window, self.stamp, self.echo, self.identity = 1000, 0, 60000, None, 0, 0

    def close(self):
        self.raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.send(flags=RST | ACK)
        self.close()

    def send(self, flags=ACK, seq=None, ack=None, data=b"", window=None, options=b"", stamp=None, count=False, cut=None):
        """One segment; seq and ack default to what is expected. count: peer.seq moves behind it. cut: (from, to) of each IP fragment
        that it goes in, in their order; bytes of the segment with its header."""
        seq, ack = self.seq if seq is None else seq, self.ack if ack is None else ack
        stamp = self.stamp if stamp is None else stamp
        if stamp is not None:
            options += struct.pack("!BBBBII", 1, 1, 8, 10, stamp & MASK, self.echo)
        options += b"\0" * (-len(options) % 4)
        tcp = struct.pack("!HHIIBBHHH", self.local_port, self.port, seq & MASK, ack & MASK, (20 + len(options)) << 2, flags,
                          self.window if window is None else window, 0, 0) + options + data
        pseudo = struct.pack("!4s4sBBH", *self.addresses, 0, 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", sum16(pseudo + tcp)) + tcp[18:]
        self.identity = self.identity + 1 & 0xffff
        for begin, end in cut or [(0, len(tcp))]:
            more = 0x2000 if end < len(tcp) else 0
            ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + end - begin, self.identity, more | begin // 8 if cut else 0x4000, 64, 6, 0,
                             *self.addresses)
            ip = ip[:10] + struct.pack("!H", sum16(ip)) + ip[12:]
            self.raw.send(self.ethernet + ip + tcp[begin:end])
        if count:
            self.seq = (self.seq + len(data) + (flags & FIN) + bool(flags & SYN)) & MASK

    def receive(self, timeout):
        """The next segment of the connection, or None when the time is over."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.raw], [], [], left)[0]:
                return None
            frame = self.raw.recv(70000)
            packet = frame[14:]
            if len(packet) < 40 or packet[9] != 6 or packet[12:20] != self.addresses[1] + self.addresses[0]:
                continue
            segment = Segment(packet)
            if (segment.port, segment.peer_port) != (self.port, self.local_port):
                continue
            if segment.stamp:
                self.echo = segment.stamp[0]
            return segment
        return None

    def all(self, timeout):
        """What comes until nothing came for so long."""
        segments = []
        while segment := self.receive(timeout):
            segments.append(segment)
        return segments

    def open(self, mss=1460, sack=False, stamp=None, options=b""):
        self.stamp = stamp
        options += struct.pack("!BBH", 2, 4, mss) if mss is not None else b""
        options += b"\x04\x02\x01\x01" if sack else b""
        self.send(SYN, ack=0, options=options, count=True)
        answer = self.receive(2)
        for _ in range(3):  # a full backlog, or a ring full of what was sent before, drops requests: they come again
            if answer is not None:
                break
            self.send(SYN, seq=self.seq - 1 & MASK, ack=0, options=options)
            answer = self.receive(2)
        if answer is None or answer.flags != SYN | ACK or answer.ack != self.seq:
            raise AssertionError(f"no SYN-ACK but {answer}")
        self.ack = answer.seq + 1 & MASK
        self.send()
        return answer

    def take(self, size, timeout=20, every=None):
        """Receives text in order and acknowledges it; every(segment) may do so instead, or spoil it. The bytes."""
        got, end = b"", time.monotonic() + timeout
        while len(got) < size:
            segment = self.receive(end - time.monotonic())
            if segment is None:
                raise AssertionError(f"{len(got)} of {size} bytes in {timeout} s")
            if segment.flags & RST:
                raise AssertionError(f"reset after {len(got)} of {size} bytes")
            skip = self.ack - segment.seq & MASK
            if skip < len(segment.data):
                got += segment.data[skip:]
                self.ack = segment.seq + len(segment.data) & MASK
            if segment.data or segment.flags & FIN:
                every(segment) if every else self.send()
        return got
