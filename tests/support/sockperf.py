"""One sockperf run: a server in one namespace, a client in another, both outputs read.

The received count of a run is the server's own ("Total N messages received and handled", printed on SIGINT); the client
of a throughput run knows only what it sent. Latencies are microseconds one way, as sockperf prints them (RTT/2).
"""

import itertools
import os
import re
import signal
import tempfile
from dataclasses import dataclass, field

from netns import binary

PORT = 11111
_runs = itertools.count()
# The client when it had next to no processor in its second; the second is of versions after Debian's.
STARVED = ("No valid observations", "Test end before test start")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Result:
    mode: str
    client_rc: int
    server_rc: int
    client_out: str
    server_out: str
    sent: int = 0
    seconds: float = 0.0
    received: int | None = None  # by the server's count; None: it did not print one (daemon)
    answers: int | None = None  # pp, ul: replies that came back
    latency: dict = field(default_factory=dict)  # "p50", "p99", "p99.9", "min", "max", "avg"
    dropped: int | None = None
    duplicated: int | None = None
    out_of_order: int | None = None
    kernel_in: int = 0  # datagrams or segments that the kernel of the server's namespace delivered during the run
    client_kernel_in: int = 0  # the same at the client: the answers

    @property
    def rate(self):
        """Messages received per second of the client's sending time."""
        return self.received / self.seconds if self.received and self.seconds else 0.0

    @property
    def text(self):
        return f"--- client rc={self.client_rc}\n{self.client_out}\n--- server rc={self.server_rc}\n{self.server_out}"


def _number(pattern, text, convert=int):
    match = re.search(pattern, text)
    return convert(match.group(1)) if match else None


def parse(mode, client_rc, client_out, server_rc, server_out):
    client, server = ANSI.sub("", client_out), ANSI.sub("", server_out)
    result = Result(mode, client_rc, server_rc, client, server)
    received = re.findall(r"Total (\d+) messages received", server)  # one line a run, also with threads
    result.received = sum(map(int, received)) if received else None
    if mode == "tp":
        sent = re.search(r"Total of (\d+) messages sent in ([0-9.]+) sec", client)
        if sent:
            result.sent, result.seconds = int(sent.group(1)), float(sent.group(2))
        return result
    run = re.search(r"\[Total Run\] RunTime=([0-9.]+) sec.*SentMessages=(\d+); ReceivedMessages=(\d+)", client)
    if run:
        result.seconds, result.sent, result.answers = float(run.group(1)), int(run.group(2)), int(run.group(3))
    for name in re.findall(r"percentile ([0-9.]+) =", client):
        key = "p" + name.rstrip("0").rstrip(".")
        result.latency[key] = _number(rf"percentile {re.escape(name)} =\s*([0-9.]+)", client, float)
    for key, pattern in (("min", r"<MIN> observation =\s*([0-9.]+)"), ("max", r"<MAX> observation =\s*([0-9.]+)"),
                         ("avg", r"avg-(?:latency|rtt)=([0-9.]+)")):
        value = _number(pattern, client, float)
        if value is not None:
            result.latency[key] = value
    result.dropped = _number(r"# dropped messages = (\d+)", client)
    result.duplicated = _number(r"# duplicated messages = (\d+)", client)
    result.out_of_order = _number(r"# out-of-order messages = (\d+)", client)
    return result


def _feed_file(protocol, ip, port, count):
    with tempfile.NamedTemporaryFile("w", prefix="vt-feed-", suffix=".txt", delete=False) as feed:
        for i in range(count):
            feed.write(f"{'T' if protocol == 'tcp' else 'U'}:{ip}:{port + i}\n")
    return feed.name


def _kernel_in(space, protocol):
    return space.counters("Tcp")["InSegs"] if protocol == "tcp" else space.counters("Udp")["InDatagrams"]


def run_pair(client, server, mode="pp", protocol="udp", size=14, seconds=1, **options):
    """Runs sockperf `mode` (pp, ul, tp) from namespace client to namespace server; the parsed Result. On a starved machine a
    second may give sockperf nothing that it calls a valid observation: then it runs once more, longer."""
    result = _run_pair(client, server, mode, protocol, size, seconds, **options)
    if any(said in result.client_out for said in STARVED):
        result = _run_pair(client, server, mode, protocol, size, 5 * seconds, **options)
    return result


def _run_pair(client, server, mode, protocol, size, seconds, client_env=None, server_env=None, nonblocked=False, iomux=None,
              sockets=1, threads=None, daemonize=False, client_args=(), server_args=(), client_cpu=0, server_cpu=1,
              port=None, mps=None, stop_timeout=10.0, program="sockperf"):
    """One run. sockets > 1 or iomux uses a feed file of that many sockets on both sides, on consecutive ports. program: another build
    of sockperf than Debian's, by its path. AssertionError when an end does not come up or down in time; the caller judges everything
    else from the result.
    """
    if port is None:
        # A fresh one each time: on the kernel, too, an earlier TCP server may have left its port in TIME_WAIT.
        port = PORT + 128 * (next(_runs) % 150)
    feed = _feed_file(protocol, server.ip, port, sockets) if iomux or sockets > 1 or threads else None
    where = ["-f", feed, "-F", iomux or "epoll"] if feed else ["-i", server.ip, "-p", str(port)]
    common = where + (["--tcp"] if protocol == "tcp" and not feed else []) + (["--nonblocked"] if nonblocked else [])
    server_line = [program, "sr", *common, *server_args]
    if threads:
        server_line += ["--threads-num", str(threads)]
    if daemonize:
        server_line += ["--daemonize"]
    client_line = [program, mode, *common, "-t", str(seconds), "-m", str(size), *client_args]
    if mps:
        client_line += ["--mps", str(mps)]
    try:
        before, client_before = _kernel_in(server, protocol), _kernel_in(client, protocol)
        process = server.start(server_line, cpu=server_cpu, env=server_env)
        if daemonize:
            process.wait(10)
        for i in {0, sockets - 1}:
            server.wait_bound(protocol, port + i, process=None if daemonize else process)
            if protocol == "tcp" and server_env and not daemonize:
                pages = server_env.get("VMA_STATS_SHMEM_DIR", "/tmp/")
                server.wait_served(port + i, process, viewer=[binary("vma_stats"), "-k", pages])
        done = client.run(client_line, cpu=client_cpu, env=client_env, timeout=seconds + 30)
        if daemonize:
            server_rc = _stop_daemon(server, stop_timeout)
        else:
            server_rc = process.stop(signal.SIGINT, stop_timeout)
        result = parse(mode, done.rc, done.out, server_rc, process.out)
        result.kernel_in = _kernel_in(server, protocol) - before
        result.client_kernel_in = _kernel_in(client, protocol) - client_before
        return result
    finally:
        if feed:
            os.unlink(feed)


def _stop_daemon(space, timeout):
    """Interrupts what is left in the server's namespace; 0 when it went away in time."""
    from netns import eventually
    pids = space.pids()
    if not pids:
        raise AssertionError(f"{space.name}: the daemon is not running")
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    if not eventually(lambda: not space.pids(), timeout):
        raise AssertionError(f"{space.name}: the daemon does not end on SIGINT")
    return 0
