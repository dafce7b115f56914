"""udp_many.py IP PORT COUNT: COUNT UDP sockets, bound to IP and the ports from PORT on, each of which echoes.

Prints "ready PID". Ends at the end of standard input.
"""

import os
import resource
import selectors
import socket
import sys


def main():
    ip, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with selectors.EpollSelector() as selector:
        for i in range(count):
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.bind((ip, port + i))
            selector.register(s, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        print("ready", os.getpid(), flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                key.fileobj.sendto(*key.fileobj.recvfrom(65536))


main()
