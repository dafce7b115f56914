"""Frames that no kernel sends: truncated, wrong checksums, lying lengths, stray fragments, odd options, all to one UDP
port. A seed makes the same frames again."""

import random
import socket
import struct
import time


def _mac(space):
    return bytes.fromhex(space.run(["cat", f"/sys/class/net/{space.dev}/address"]).out.strip().replace(":", ""))


def _sum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def frame(rng, ethernet, source, destination, port):
    """One frame: a right one with one or more faults."""
    body = rng.randbytes(rng.choice((0, 1, 14, 64, 1400)))
    udp_length, total_extra, header_words = 8 + len(body), 0, 5
    flags_offset, version, wrong_sum = 0, 4, False
    options = b""
    for fault in rng.sample(range(8), rng.randint(1, 3)):
        if fault == 0:
            udp_length = rng.choice((0, 7, 8, udp_length + 1, 65535))
        elif fault == 1:
            total_extra = rng.choice((-20, -8, -1, 1, 1000))
        elif fault == 2:
            header_words = rng.choice((0, 1, 4, 6, 15))
        elif fault == 3:
            flags_offset = rng.choice((0x2000, 0x2001, 0x0001, 0x1fff, 0x3fff, 0x8000))
        elif fault == 4:
            version = rng.choice((0, 5, 6, 15))
        elif fault == 5:
            wrong_sum = True
        elif fault == 6:
            options = rng.randbytes(4 * rng.randint(1, 10))
            header_words = 5 + len(options) // 4
        else:
            source = rng.choice((b"\0" * 4, b"\xff" * 4, destination, b"\x7f\0\0\1", rng.randbytes(4)))
    datagram = struct.pack("!HHHH", rng.choice((0, 53, 40000)), port, udp_length, rng.getrandbits(16)) + body
    total = max(0, min(65535, 20 + len(options) + len(datagram) + total_extra))
    header = struct.pack("!BBHHHBBH4s4s", version << 4 | header_words, 0, total, rng.getrandbits(16), flags_offset, 64, 17, 0,
                         source, destination) + options
    checksum = rng.getrandbits(16) if wrong_sum else _sum(header)
    header = header[:10] + struct.pack("!H", checksum) + header[12:]
    whole = ethernet + header + datagram
    return whole[:rng.randint(14, len(whole))] if rng.random() < 0.2 else whole


def flood(client, server, port, count, seed):
    """Sends count frames from namespace client (the calling thread is in it) to a port of the server; how many went out.
    1000 different frames are made first, so that the sending is as fast as the interface takes them."""
    rng = random.Random(seed)
    ethernet = _mac(server) + _mac(client) + b"\x08\x00"
    addresses = socket.inet_aton(client.ip), socket.inet_aton(server.ip)
    frames = [frame(rng, ethernet, *addresses, port) for _ in range(1000)]
    sent = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.bind((client.dev, 0))
        end = time.monotonic() + 30
        for i in range(count):
            try:
                raw.send(frames[i % len(frames)])
                sent += 1
            except OSError:  # a full queue, or a frame too short for the device
                if time.monotonic() > end:
                    break
    return sent
