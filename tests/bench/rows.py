"""The rows of the benchmark: data. Each carries an id of the table of targets, and how to measure one side of it once.

A row measures the kernel (no preload) and ours in turn; `sides` says which ends are preloaded for ours. The value is in
`unit`; `better` is "less" or "more". `target` bounds ours/kernel (or ours alone when `absolute`), None: printed only.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Callable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sockperf  # noqa: E402
from netns import REPO, Loopback, binary, preload_env  # noqa: E402
from samples import CLIENT_CPU, SERVER_CPU, Sample  # noqa: E402
from servers import connections, redis, wrk  # noqa: E402

SUPPORT = os.path.join(REPO, "tests/support")


@dataclass
class Row:
    id: str  # of targets
    name: str  # id, a dot, what distinguishes the row
    what: str
    unit: str
    better: str
    target: float | None
    measure: Callable  # (net, client env or None, server env or None, seconds) -> Sample
    sides: str = "both"  # both, client, server
    absolute: bool = False
    repeats: int = 5
    kernel_measure: Callable | None = None  # when the kernel side is another measurement
    by_minimum: bool = False  # judged by the best of each side's repeats, not by the median of the ratios


def _offloaded(result, protocol, server_preloaded):
    """Did the kernel of the preloaded end (the server's when both are) see almost nothing of what that end received?"""
    seen, expected = (result.kernel_in, result.received) if server_preloaded else (result.client_kernel_in, result.answers)
    return bool(expected) and seen < max(0.05 * expected, 50 if protocol == "tcp" else 20)


def ping_pong(protocol="udp", nonblocked=False, size=14, percentile="p50"):
    def measure(net, client_env, server_env, seconds):
        result = sockperf.run_pair(net["a"], net["b"], "pp", protocol, size, seconds, client_env=client_env,
                                   server_env=server_env, nonblocked=nonblocked)
        if percentile not in result.latency or result.client_rc != 0:
            raise AssertionError(f"sockperf gave no {percentile}\n{result.text}")
        return Sample(result.latency[percentile], _offloaded(result, protocol, bool(server_env)))
    return measure


def throughput(protocol="udp", size=64):
    def measure(net, client_env, server_env, seconds):
        result = sockperf.run_pair(net["a"], net["b"], "tp", protocol, size, seconds, client_env=client_env,
                                   server_env=server_env)
        if not result.received or result.client_rc != 0:
            raise AssertionError(f"the server received nothing\n{result.text}")
        return Sample(result.rate, _offloaded(result, protocol, True),
                      f"{result.sent:,} sent, {result.received:,} received, {result.kernel_in:,} of them through the "
                      "kernel's UDP" if protocol == "udp" else "")
    return measure


def iperf(net, client_env, server_env, seconds):
    server = net["b"].start(["iperf3", "-s", "-1", "-B", net["b"].ip], cpu=SERVER_CPU, env=server_env)
    try:
        net["b"].wait_bound("tcp", 5201, process=server)
        done = net["a"].run(["iperf3", "-J", "-t", str(seconds), "-c", net["b"].ip], cpu=CLIENT_CPU, env=client_env,
                            timeout=seconds + 30)
        if done.rc != 0:
            raise AssertionError(done.out)
        report = json.loads(done.out[done.out.index("{"):])
        return Sample(report["end"]["sum_received"]["bits_per_second"] / 1e9)
    finally:
        server.kill()


def idle_after_load(net, client_env, server_env, seconds):
    """CPU of a blocking sockperf server from one second after a ping-pong ended, percent of a core."""
    server = net["b"].start(["sockperf", "sr", "-i", net["b"].ip, "-p", str(sockperf.PORT)], cpu=SERVER_CPU,
                            env=server_env)
    try:
        net["b"].wait_bound("udp", sockperf.PORT, process=server)
        before = net["b"].counters("Udp")["InDatagrams"]
        done = net["a"].run(["sockperf", "pp", "-i", net["b"].ip, "-p", str(sockperf.PORT), "-t", "1"], cpu=CLIENT_CPU,
                            env=client_env)
        if done.rc != 0:
            raise AssertionError(done.out)
        answers = sockperf.parse("pp", done.rc, done.out, 0, "").answers
        accelerated = net["b"].counters("Udp")["InDatagrams"] - before < 0.05 * answers
        time.sleep(1)  # the row's definition: one second after the load ended
        return Sample(_cpu_percent(server, max(seconds, 2)), accelerated)
    finally:
        server.stop(signal.SIGINT)


def _kernel_messages(space, protocol):
    return space.counters("Tcp")["InSegs"] if protocol == "tcp" else space.counters("Udp")["InDatagrams"]


def _cpu_percent(process, seconds):
    begin, used = time.monotonic(), process.cpu_seconds()
    time.sleep(seconds)  # the measuring interval
    return 100.0 * (process.cpu_seconds() - used) / (time.monotonic() - begin)


def idle_sockets(protocol, count):
    """CPU of an epoll server with `count` sockets or connections that were used once and are now quiet."""
    def measure(net, client_env, server_env, seconds):
        server = net["b"].start(["python3", f"{SUPPORT}/idle_server.py", protocol, net["b"].ip, "9000", str(count)],
                                cpu=SERVER_CPU, env=server_env)
        try:
            server.expect("ready", 30)
            before = _kernel_messages(net["b"], protocol)
            client = net["a"].start(["python3", f"{SUPPORT}/idle_client.py", protocol, net["b"].ip, "9000", str(count)],
                                    cpu=CLIENT_CPU, env=client_env)
            server.expect(f"served {count}", 60)
            accelerated = _kernel_messages(net["b"], protocol) - before < 0.05 * count
            time.sleep(1)  # as in idle_after_load
            percent = _cpu_percent(server, max(seconds, 2))
            client.kill()
            return Sample(percent, accelerated)
        finally:
            server.kill()
    return measure


def with_bystanders(measure, count):
    """The kernel's own figure while `count` preloaded idle servers are on the receiver's interface."""
    def measured(net, client_env, server_env, seconds):
        servers = [net["b"].start(["sockperf", "sr", "-i", net["b"].ip, "-p", str(20000 + i)], cpu=SERVER_CPU,
                                  env=preload_env()) for i in range(count)]
        try:
            for i, server in enumerate(servers):
                net["b"].wait_bound("udp", 20000 + i, 30, server)
            return Sample(measure(net, None, None, seconds).value)  # the kernel's path is meant here
        finally:
            for server in servers:
                server.kill()
    return measured


def looked_at(measure, reader):
    """Both ends preloaded; with a `reader` vma_stats looks at both processes ten times a second."""
    def measured(net, _client_env, _server_env, seconds):
        with tempfile.TemporaryDirectory(prefix="vma-bench-") as folder:
            env = preload_env(VMA_STATS_SHMEM_DIR=folder)
            looks = f"{folder}/looks"
            viewer = net["b"].start([binary("vma_stats"), "-k", folder, "record", "--wait", "-i", "0.1", "-o", looks]) if reader else None
            try:
                sample = measure(net, env, env, seconds)
                if viewer:
                    viewer.wait(10)  # its last look finds nobody
                    _assert_looked(looks, 10, seconds)
                return sample
            finally:
                if viewer:
                    viewer.kill()
    return measured


def _assert_looked(recording, rate, seconds):
    """At both processes, nearly `rate` times in each of the seconds."""
    with open(recording, encoding="utf-8") as f:
        looks = [json.loads(line) for line in f]
    both = [look["time"] for look in looks if len(look["look"]["processes"]) == 2]
    if len(both) < 0.9 * rate * seconds:
        raise AssertionError(f"{len(both)} looks of vma_stats at both processes in {seconds} s")


def _one_socket(net, env):
    done = net["a"].run([binary("one_socket"), net["b"].ip], cpu=CLIENT_CPU, env=env)
    match = re.search(r"rss_kib=(\d+) up_us=(\d+)", done.out)
    if done.rc != 0 or not match:
        raise AssertionError(done.out)
    return int(match.group(1)), int(match.group(2))


def start_memory(net, client_env, _server_env, _seconds):
    return Sample(_one_socket(net, client_env)[0] / 1024)


def start_time(net, client_env, _server_env, _seconds):
    return Sample(_one_socket(net, client_env)[1] / 1000)


def one_host(measure):
    """The same between two processes of one host, by shared memory where both are preloaded."""
    def measured(net, client_env, server_env, seconds):
        envs = [env and {**env, "VMA_SHM_AFTER": "8"} for env in (client_env, server_env)]
        return measure({"a": net["a"], "b": Loopback(net["a"])}, *envs, seconds)
    return measured


def each_end(id, name, what, unit, target, measure):
    """Three rows: both ends preloaded, with a target, and each alone, which is not to be slower than the kernel."""
    return [Row(id, name, what, unit, "more", target, measure)] + [
        Row(id, f"{name}.{side}", f"{what}, {side} preloaded only", unit, "more", 1.0, measure, sides=side)
        for side in ("client", "server")]


ROWS = [
    Row("V1", "V1.udp", "sockperf pp 14 B UDP p50, blocking", "us", "less", 0.09, ping_pong("udp")),
    Row("V1", "V1.tcp", "sockperf pp 14 B TCP p50, blocking", "us", "less", 0.09, ping_pong("tcp")),
    Row("V2", "V2.udp", "sockperf pp 14 B UDP p50, spin", "us", "less", 0.70, ping_pong("udp", nonblocked=True)),
    Row("V2", "V2.tcp", "sockperf pp 14 B TCP p50, spin", "us", "less", 0.70, ping_pong("tcp", nonblocked=True)),
    *[Row("V3", f"V3.{p}", f"sockperf pp 14 B {p.upper()} p99.9, spin, minimum", "us", "less", 1.0,
          ping_pong(p, nonblocked=True, percentile="p99.9"), repeats=9, by_minimum=True) for p in ("udp", "tcp")],
    Row("V4", "V4.udp.client", "V2.udp, client preloaded only", "us", "less", 0.80, ping_pong("udp", nonblocked=True),
        sides="client"),
    Row("V4", "V4.udp.server", "V2.udp, server preloaded only", "us", "less", 0.80, ping_pong("udp", nonblocked=True),
        sides="server"),
    Row("V4", "V4.tcp.client", "V2.tcp, client preloaded only", "us", "less", 0.80, ping_pong("tcp", nonblocked=True),
        sides="client"),
    Row("V4", "V4.tcp.server", "V2.tcp, server preloaded only", "us", "less", 0.80, ping_pong("tcp", nonblocked=True),
        sides="server"),
    Row("V5", "V5.udp", "sockperf tp 64 B UDP, received", "msg/s", "more", 1.6, throughput("udp")),
    Row("V6", "V6.tcp", "sockperf tp 64 B TCP, received", "msg/s", "more", 6.0, throughput("tcp")),
    Row("V7", "V7.both", "iperf3 TCP", "Gbit/s", "more", 1.5, iperf),
    Row("V7", "V7.client", "iperf3 TCP, sender preloaded only", "Gbit/s", "more", 1.0, iperf, sides="client"),
    Row("V7", "V7.server", "iperf3 TCP, receiver preloaded only", "Gbit/s", "more", 1.0, iperf, sides="server"),
    *each_end("V8", "V8.c1", "redis SET and GET, 64 B, 1 client", "req/s", 7.0, redis(1)),
    *each_end("V8", "V8.c50", "redis SET and GET, 64 B, 50 clients", "req/s", 2.5, redis(50)),
    *each_end("V9", "V9.keep", "nginx and wrk, 1 KB, 50 clients, keep-alive", "req/s", 1.6, wrk(1024, 50, True)),
    *each_end("V9", "V9.close", "nginx and wrk, 1 KB, 50 clients, a connection per request", "req/s", 1.3,
              wrk(1024, 50, False)),
    *[Row("S1", f"S1.{p}", f"one host, sockperf pp 64 B {p.upper()} p50, spin", "us", "less", target,
          one_host(ping_pong(p, nonblocked=True, size=64))) for p, target in (("udp", 0.10), ("tcp", 0.13))],
    *[Row("S2", f"S2.{p}", f"one host, sockperf tp 64 B {p.upper()}, received", "msg/s", "more", target,
          one_host(throughput(p)), absolute=True) for p, target in (("udp", 11e6), ("tcp", 24e6))],
    Row("S3", "S3", "one host, iperf3 TCP", "Gbit/s", "more", 2.5, one_host(iperf)),
    Row("S4", "S4.c1", "one host, redis SET and GET, 64 B, 1 client", "req/s", "more", 9.0, one_host(redis(1))),
    Row("S4", "S4.c20", "one host, redis SET and GET, 64 B, 20 clients", "req/s", "more", 10.0, one_host(redis(20))),
    Row("S4", "S4.P16", "one host, redis SET and GET, 64 B, 20 clients, pipeline of 16", "req/s", "more", 1.9,
        one_host(redis(20, 16))),
    *each_end("I2", "I2.connect", "connections one after the other", "1/s", 1.0, connections),
    Row("I1", "I1.load", "idle CPU of the server 1 s after V1.udp", "% core", "less", 1.0, idle_after_load,
        absolute=True, repeats=3),
    Row("I1", "I1.udp", "idle CPU, 1000 UDP sockets", "% core", "less", 1.0, idle_sockets("udp", 1000), absolute=True,
        repeats=3),
    Row("I1", "I1.tcp", "idle CPU, 1000 TCP connections", "% core", "less", 1.0, idle_sockets("tcp", 1000),
        absolute=True, repeats=3),
    Row("M2", "M2.memory", "resident memory of a program with one socket", "MiB", "less", 48.0, start_memory,
        absolute=True),
    Row("M2", "M2.start", "exec to the first datagram sent", "ms", "less", 30.0, start_time, absolute=True, repeats=15),
    *[Row("O1", f"O1.{p}", f"sockperf pp 14 B {p.upper()} p50, spin, vma_stats at 10 Hz against none", "us", "less", 1 / 0.95,
          looked_at(ping_pong(p, nonblocked=True), True), repeats=9,
          kernel_measure=looked_at(ping_pong(p, nonblocked=True), False)) for p in ("udp", "tcp")],
    *[Row("N1", f"N1.pp.{n}", f"kernel pp UDP spin p50 beside {n} preloaded processes", "us", "less", 1 / 0.95,
          with_bystanders(ping_pong("udp", nonblocked=True), n), kernel_measure=ping_pong("udp", nonblocked=True))
      for n in (0, 1, 20)],
    *[Row("N1", f"N1.iperf.{n}", f"kernel iperf3 TCP beside {n} preloaded processes", "Gbit/s", "more", 0.95,
          with_bystanders(iperf, n), kernel_measure=iperf) for n in (0, 1, 20)],
]
