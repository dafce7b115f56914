"""py_clients.py tcp|tls|udp IP PORT COUNT BYTES SEED: asyncio clients of an echo server, all at once. Each stream is ended by a
half-close (tls: by its length) and must come back whole. tls: the certificate is CERT. Ends with "good"."""

import asyncio
import os
import ssl
import sys

from duplex import LIMIT, pattern


async def stream(ip, port, data, context, gate):
    async with gate:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(ip, port, ssl=context), LIMIT)

        async def send():
            writer.write(data)
            await writer.drain()
            if context is None:
                writer.write_eof()

        sender = asyncio.create_task(send())
        back = await (reader.readexactly(len(data)) if context else reader.read())
        await sender
        writer.close()
        assert back == data, f"{len(back)} of {len(data)} bytes came back, or others"


class Asker(asyncio.DatagramProtocol):
    def __init__(self):
        self.answers = asyncio.Queue()

    def datagram_received(self, data, addr):
        self.answers.put_nowait(data)


async def datagrams(ip, port, count, size, seed):
    transport, asker = await asyncio.get_running_loop().create_datagram_endpoint(Asker, remote_addr=(ip, port))
    source = pattern(seed, 2 * 65521)
    for i in range(count):
        data = source[i % 65521:][:size]
        transport.sendto(data)
        assert await asyncio.wait_for(asker.answers.get(), LIMIT) == data, f"datagram {i}"
    transport.close()


async def main():
    kind, ip, port, count, size, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    if kind == "udp":
        await datagrams(ip, port, count, size, seed)
    else:
        context = ssl.create_default_context(cafile=os.environ["CERT"]) if kind == "tls" else None
        gate = asyncio.Semaphore(50)
        lanes = [stream(ip, port, pattern(seed + i, size), context, gate) for i in range(count)]
        await asyncio.wait_for(asyncio.gather(*lanes), 4 * LIMIT)
    print("good", flush=True)


asyncio.run(main())
