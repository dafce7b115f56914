"""py_servers.py KIND IP PORT [WORKERS]: echo servers of python's standard library. SIGTERM ends them in order ("stopped").

asyncio     streams: one thread, epoll
asyncio_tls the same over TLS; CERT and KEY in the environment are its files
threading   socketserver.ThreadingTCPServer: a thread for each connection
forking     socketserver.ForkingTCPServer: a child for each connection
selectors   one thread, non-blocking calls, selectors.DefaultSelector
executor    a ThreadPoolExecutor accepts in every thread, blocking calls
reuseport   WORKERS spawned processes, each with a listener of its own (SO_REUSEPORT)
spawn       WORKERS spawned processes get the listener through multiprocessing
datagrams   asyncio's datagram endpoint
"""

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import selectors
import signal
import socket
import socketserver
import ssl
import sys
import threading

from duplex import echo_blocking


class Stop(Exception):
    pass


def stop(*_):
    raise Stop


def listen(ip, port, reuse_port=False):
    return socket.create_server((ip, port), backlog=512, reuse_port=reuse_port)


def until_told():
    with contextlib.suppress(Stop):
        print("ready", flush=True)
        signal.pause()


async def until_told_async():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    print("ready", flush=True)
    await told.wait()


async def echo_stream(reader, writer):
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


def run_asyncio(ip, port, context=None):
    async def main():
        server = await asyncio.start_server(echo_stream, ip, port, backlog=512, ssl=context)
        async with server:
            await until_told_async()
    asyncio.run(main())


def run_asyncio_tls(ip, port, _):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["CERT"], os.environ["KEY"])
    run_asyncio(ip, port, context)


def run_datagrams(ip, port, _):
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, addr):
            self.transport.sendto(data, addr)

    async def main():
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=(ip, port))
        await until_told_async()
        transport.close()
    asyncio.run(main())


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(ConnectionError):
            echo_blocking(self.request)


def run_socketserver(kind, ip, port):
    class Server(kind):
        request_queue_size = 512
        daemon_threads = True
        max_children = 100

    with Server((ip, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        until_told()
        server.shutdown()
        thread.join()


def serve_for_ever(listener):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        s, _ = listener.accept()
        with s, contextlib.suppress(ConnectionError):
            echo_blocking(s)


def own_listener(ip, port):
    serve_for_ever(listen(ip, port, reuse_port=True))


def processes(target, arguments, workers):
    spawn = multiprocessing.get_context("spawn")
    crew = [spawn.Process(target=target, args=arguments, daemon=True) for _ in range(workers)]
    for p in crew:
        p.start()
    until_told()
    for p in crew:
        p.terminate()
        p.join(10)


def run_executor(ip, port, workers):
    listener = listen(ip, port)

    def accept_for_ever():
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return  # shut down
            with s, contextlib.suppress(ConnectionError):
                echo_blocking(s)

    with concurrent.futures.ThreadPoolExecutor(workers) as crew:
        for _ in range(workers):
            crew.submit(accept_for_ever)
        until_told()
        listener.shutdown(socket.SHUT_RDWR)


def run_selectors(ip, port, _):
    listener = listen(ip, port)
    listener.setblocking(False)
    waiting = {}  # connection: (bytes that are still to be sent, has it ended?)

    def serve(s, mask):
        data, ended = waiting[s]
        if mask & selectors.EVENT_READ and not data:
            data = s.recv(65536)
            ended = not data
        if data:
            with contextlib.suppress(BlockingIOError):
                data = data[s.send(data):]
        waiting[s] = data, ended
        if ended and not data:
            raise EOFError
        selector.modify(s, selectors.EVENT_WRITE if data else selectors.EVENT_READ)

    with selectors.DefaultSelector() as selector, contextlib.suppress(Stop):
        selector.register(listener, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, mask in selector.select():
                s = key.fileobj
                if s is listener:
                    with contextlib.suppress(BlockingIOError):
                        s = listener.accept()[0]
                        s.setblocking(False)
                        waiting[s] = b"", False
                        selector.register(s, selectors.EVENT_READ)
                    continue
                try:
                    serve(s, mask)
                except (EOFError, ConnectionError):
                    selector.unregister(s)
                    del waiting[s]
                    s.close()


RUN = {
    "asyncio": lambda ip, port, _: run_asyncio(ip, port),
    "asyncio_tls": run_asyncio_tls,
    "threading": lambda ip, port, _: run_socketserver(socketserver.ThreadingTCPServer, ip, port),
    "forking": lambda ip, port, _: run_socketserver(socketserver.ForkingTCPServer, ip, port),
    "selectors": run_selectors,
    "executor": run_executor,
    "reuseport": lambda ip, port, workers: processes(own_listener, (ip, port), workers),
    "spawn": lambda ip, port, workers: processes(serve_for_ever, (listen(ip, port),), workers),
    "datagrams": run_datagrams,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    RUN[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 4)
    print("stopped", flush=True)
