"""Measurements with real servers: redis and nginx, and connections asked for one after the other. Signatures as in rows.py.
"""

import itertools
import os
import re
import shutil
import tempfile

import nginx
from netns import binary, library
from samples import CLIENT_CPU, SERVER_CPU, Sample

# A port per server: tuples that the kernel has in TIME_WAIT from a run before stay the kernel's.
_ports = itertools.count(21000)

_SLACK = 300  # segments of connections that begin before the listener is served, or end after it has gone


class _Seen:
    """Did the kernels of the preloaded ends see almost nothing of the segments that were exchanged?"""

    def __init__(self, net, client_env, server_env):
        self.ends = [space for space, env in ((net["a"], client_env), (net["b"], server_env)) if env]
        self.before = [space.counters("Tcp")["InSegs"] for space in self.ends]

    def accelerated(self, expected):
        return all(space.counters("Tcp")["InSegs"] - before < max(_SLACK, 0.1 * expected)
                   for space, before in zip(self.ends, self.before))


def _wait_served(space, port, server, env):
    """Of another library than ours (--also) nobody can tell."""
    if env and env["LD_PRELOAD"] == library():
        space.wait_served(port, process=server)


def redis(clients, pipeline=1):
    """Requests per second of SETs and as many GETs, 64 bytes."""
    def measure(net, client_env, server_env, seconds):
        port = next(_ports)
        server = net["b"].start(["redis-server", "--bind", net["b"].ip, "--port", port, "--save", "", "--appendonly", "no",
                                 "--protected-mode", "no"], cpu=SERVER_CPU, env=server_env)
        try:
            net["b"].wait_bound("tcp", port, process=server)
            server.expect("Ready to accept connections")
            line = ["redis-benchmark", "-h", net["b"].ip, "-p", port, "-c", clients, "-P", pipeline, "-d", 64,
                    "-t", "set,get", "--csv"]
            # As many as the slower side does in about the time that is wanted: a first run tells how many that is.
            requests = 2000 * pipeline
            for last in (False, True):
                seen = _Seen(net, client_env, server_env)
                done = net["a"].run([*line, "-n", requests], cpu=CLIENT_CPU, env=client_env, timeout=120)
                rates = [float(rate) for rate in re.findall(r'(?m)^"[SG]ET","([0-9.]+)"', done.out)]
                if done.rc != 0 or len(rates) != 2 or min(rates) <= 0:
                    raise AssertionError(done.out)
                rate = 2 / sum(1 / r for r in rates)
                if not last:
                    requests = max(requests, int(rate * seconds / 2))
            return Sample(rate, seen.accelerated(requests / pipeline))
        finally:
            server.stop()
    return measure


def wrk(size, connections, keepalive):
    """Requests per second for a file of `size` bytes."""
    def measure(net, client_env, server_env, seconds):
        port, folder = next(_ports), tempfile.mkdtemp(prefix="vt-bench-")
        try:
            os.mkdir(os.path.join(folder, "www"))
            with open(os.path.join(folder, "www/file"), "wb") as f:
                f.write(os.urandom(size))
            with open(os.path.join(folder, "nginx.conf"), "w") as f:
                f.write(nginx.configuration(folder, net["b"].ip, port))
            os.chmod(folder, 0o755)
            server = net["b"].start(["nginx", "-p", folder, "-c", "nginx.conf"], cpu=SERVER_CPU, env=server_env)
            try:
                net["b"].wait_bound("tcp", port, process=server)
                _wait_served(net["b"], port, server, server_env)
                seen = _Seen(net, client_env, server_env)
                done = net["a"].run(["wrk", "-t", "1", "-c", connections, "-d", f"{max(seconds, 2)}s",
                                     *([] if keepalive else ["-H", "Connection: close"]),
                                     f"http://{net['b'].ip}:{port}/file"], cpu=CLIENT_CPU, env=client_env, timeout=60)
                rate = re.search(r"Requests/sec:\s+([0-9.]+)", done.out)
                if done.rc != 0 or not rate or "Non-2xx" in done.out:
                    raise AssertionError(done.out)
                return Sample(float(rate.group(1)), seen.accelerated(float(rate.group(1)) * max(seconds, 2)))
            finally:
                server.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return measure


def connections(net, client_env, server_env, seconds):
    """Connections per second, one after the other: connect, 64 bytes there and back, the server closes."""
    port = next(_ports)
    server = net["b"].start([binary("connection_rate"), "serve", net["b"].ip, port], cpu=SERVER_CPU, env=server_env)
    try:
        server.expect("ready")
        _wait_served(net["b"], port, server, server_env)
        seen = _Seen(net, client_env, server_env)
        done = net["a"].run([binary("connection_rate"), "ask", net["b"].ip, port, max(seconds, 2)], cpu=CLIENT_CPU,
                            env=client_env, timeout=60)
        match = re.search(r"connections=(\d+) rate=([0-9.]+)", done.out)
        if done.rc != 0 or not match:
            raise AssertionError(done.out + server.out)
        return Sample(float(match.group(2)), seen.accelerated(3 * int(match.group(1))))
    finally:
        server.kill()
