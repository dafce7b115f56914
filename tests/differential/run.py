#!/usr/bin/env python3
"""Runs behaviours (behaviour.h) on the kernel and preloaded and compares what they saw.

    run.py                          all of them, two at a time
    run.py GROUP|NAME...            some; -v prints the transcripts, --keep the library's log, too
    run.py --sample 3 GROUP         one in three, chosen by the seed that is printed; with what was left out
    run.py --list

Both roles on the kernel give the expected transcripts, exit status and standard error. Then role a, role b and both run
preloaded, and must see the same. A preloaded role must also have shown that its socket was on the ring (on_ring()), so that
the kernel is never compared with itself. What differs must be in differences.toml, in exactly this way; an entry that no
longer differs fails, too.

--ring shm: both roles are processes of one namespace, and connected() returns once its connection has moved into shared memory,
which takes a few calls (VMA_SHM_AFTER=1); one that does not is a failure. Listed differences may be there.

--ring verbs, mlx5: each namespace has a card of the software HCA (docs/SOFTHCA.md) in the place of its veth; softhca_port is the
kernel's side of it, so that the kernel and the ring share one port, as on hardware.
"""

import argparse
import concurrent.futures
import difflib
import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../support"))
from netns import Net, SoftHcaNet, binary, library  # noqa: E402

LIMIT = 12.0  # seconds, of one run; behaviours bound their waits by 5 and 10
SOLO, A_KERNEL, B_KERNEL = 1, 2, 4
PORTS_PER_RUN = 16
# What is left out, for the stage on which it runs.
# shm: what needs two hosts on the kernel, too: groups of one interface, the source address of a route, one port at both ends. And
#   two that differ on one host also where nothing goes by shared memory (VMA_SHM_AFTER=0): a listener served by the packet ring and by the
#   kernel, to which the connection comes by lo; a kernel member of a set in which ours fill every wait.
# verbs: what the kernel sends passes one process more than what the ring sends, and is not there when the call returns: what
#   looks at the order of the two, or at once. And the software HCA's files are out of reach after chroot().
# xdp: frames have no receive stamp of the kernel, by which those that come by the ring and by the kernel (fragments) are put in order.
LEFT_OUT = {
    "xdp": re.compile(r"udp_order_\w+|udp_paced_shapes"),
    "shm": re.compile(r"mc_\w+|send_pktinfo|close_beside_acceptor|many_members|udp_reuseaddr_nearest|udp_bound_to_interface"),
    "verbs": re.compile(r"mc_send|mc_loop|mc_leave|mc_drops_told|udp_close_unread|udp_gro_\w+|udp_order_\w+|udp_paced_shapes|"
                        r"udp_cork_and_more|cork_datagrams|send_segments|send_tos|send_ttl|send_unknown_control|"
                        r"stamp_controls|stamp_mixed|stamp_shapes|error_queue_unconnected|root_changed|udp_full_buffer\w*|"
                        r"udp_bound_to_interface"),
}
LEFT_OUT["mlx5"] = LEFT_OUT["verbs"]
# What a ring leaves to the kernel: the program must see the same, and nothing is asked of the ring.
BY_KERNEL = {"verbs": re.compile(r"mc_\w+|udp_segment_\w+|udp_paced_trains")}
BY_KERNEL["mlx5"] = BY_KERNEL["verbs"]
CARDS = ("verbs", "mlx5")
DIFFERENCES = os.path.join(HERE, "differences.toml")


class Behaviour:
    def __init__(self, line):
        self.group, self.name, kind, self.title = line.split("\t", 3)
        kind = int(kind)
        self.roles = "a" if kind & SOLO else "ab"
        self.stays_kernel = {"a": bool(kind & A_KERNEL), "b": bool(kind & B_KERNEL)}
        self.by_kernel = False  # of the ring in use

    def pairings(self):
        """Who is preloaded: "" is the kernel alone."""
        return ("", "a") if self.roles == "a" else ("", "a", "b", "ab")


def behaviours(program):
    done = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    return [Behaviour(line) for line in done.stdout.splitlines()]


class Seen:
    """What one role of one run left behind."""

    def __init__(self, transcript, end, stderr, report, log):
        self.lines = transcript.splitlines() + [end] + ["stderr: " + line for line in stderr.splitlines()]
        self.report, self.log = report.splitlines(), log


class Stage:
    """Two namespaces and what a run needs; runs one behaviour at a time."""

    def __init__(self, program, ring, extra_env):
        self.program, self.ring, self.extra_env = program, ring, extra_env
        self.net = SoftHcaNet("ab") if ring in CARDS else Net("ab")
        self.folder = tempfile.mkdtemp(prefix="differential-")
        self.port = 10000
        self.crossed = 0  # roles that were seen to use the shm ring

    def open(self):
        self.net.__enter__()
        self.addresses, head_a = {}, None
        for letter in "ab":
            space, head = self.net[letter], self.net[letter].ip.rsplit(".", 1)[0]
            second = f"{head}.{11 if letter == 'a' else 12}"
            self.addresses |= {letter: space.ip, letter + "2": second}
            head_a = head_a or head
            for line in (f"addr add {second}/24 dev {space.dev}", f"route add 224.0.0.0/4 dev {space.dev}",
                         f"neigh replace {head}.99 lladdr 02:00:00:00:00:99 dev {space.dev} nud permanent"):
                subprocess.run(["ip", "-n", space.name, *line.split()], check=True)
            space.sysctl("net.ipv4.icmp_ratelimit", 0)  # every refused datagram is told
        if self.ring == "shm":  # two addresses of the same host for the other role
            for name, last in (("b", 21), ("b2", 22)):
                self.addresses[name] = f"{head_a}.{last}"
                subprocess.run(["ip", "-n", self.net["a"].name, "addr", "add", f"{head_a}.{last}/24", "dev",
                                self.net["a"].dev], check=True)
        self.addresses |= {"silent": f"{head}.99", "absent": f"{head}.77", "nowhere": "203.0.113.1",
                           "g1": "239.77.1.1", "g2": "239.77.1.2"}

    def close(self):
        self.net.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, behaviour, preloaded):
        """Both roles at once; {role: Seen}."""
        self.port = 10000 + (self.port - 10000 + PORTS_PER_RUN) % 20000
        channel = socket.socketpair() if len(behaviour.roles) == 2 else (None, None)
        processes = {}
        try:
            for role, end in zip(behaviour.roles, channel):
                processes[role] = self._start(behaviour, role, end, role in preloaded)
            return {role: self._finish(*process) for role, process in processes.items()}
        finally:
            for end in channel:
                if end:
                    end.close()
            for popen, *_ in processes.values():
                kill_group(popen)

    def _start(self, behaviour, role, channel, preloaded):
        files = {name: os.path.join(self.folder, f"{role}.{name}") for name in ("transcript", "report", "stderr", "log")}
        for path in files.values():
            open(path, "w").close()
        fds = {name: os.open(files[name], os.O_WRONLY | os.O_APPEND) for name in ("transcript", "report", "stderr")}
        line = [self.program, "--run", behaviour.name, "--role", role, "--port", str(self.port),
                "--transcript", str(fds["transcript"]), "--report", str(fds["report"])]
        for who, address in self.addresses.items():
            line += ["--address", f"{who}={address}"]
        passed = [fds["transcript"], fds["report"]]
        if channel:
            line += ["--channel", str(channel.fileno())]
            passed.append(channel.fileno())
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("VMA_")}
        if self.ring == "shm":
            line.append("--settle")
        if preloaded:
            line += ["--preloaded", "--stats", self.folder]
            kind = ({"VMA_SHM_AFTER": "1", "VMA_TRACELEVEL": "debug"} if self.ring == "shm"
                    else {"VMA_RING_KIND": self.ring, **(self.net.env(role, self.ring) if self.ring in CARDS else {})})
            env |= {"LD_PRELOAD": library(), "VMA_LOG_FILE": files["log"], "VMA_STATS_SHMEM_DIR": self.folder,
                    **kind, **self.extra_env}
        popen = self.net["a" if self.ring == "shm" else role].call(lambda: subprocess.Popen(
            line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=fds["stderr"], pass_fds=passed,
            start_new_session=True))
        for fd in fds.values():
            os.close(fd)
        if channel:
            channel.close()  # so that each role sees the other's end
        return popen, files, time.monotonic() + LIMIT

    def _finish(self, popen, files, deadline):
        try:
            status = popen.wait(max(0.1, deadline - time.monotonic()))
            end = f"exit {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        except subprocess.TimeoutExpired:
            kill_group(popen)
            end = f"killed after {LIMIT:.0f} s"
        text = {}
        for name, path in files.items():
            with open(path, encoding="utf-8", errors="backslashreplace") as f:
                text[name] = f.read()
        return Seen(text["transcript"], end, text["stderr"], text["report"], text["log"].rpartition("-" * 70 + "\n")[2])


def kill_group(popen):
    try:
        os.killpg(popen.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    popen.wait(10)


def pairing_name(behaviour, preloaded):
    """For people: "a=ours b=kernel"."""
    return " ".join(f"{role}={'ours' if role in preloaded else 'kernel'}" for role in behaviour.roles)


def difference(expected, found):
    """["-kernel's line", "+our line"...] of one role, in order."""
    return [line for line in difflib.unified_diff(expected, found, lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))]


def ring_complaints(behaviour, role, seen):
    """Checks of on_ring() and on_kernel() that failed, or were not made at all."""
    if behaviour.by_kernel:
        return []
    bad = [line for line in seen.report if " NO" in line]
    if not any(line.startswith(("ring", "kernel") if behaviour.stays_kernel[role] else "ring") for line in seen.report):
        if not behaviour.stays_kernel[role]:
            bad.append("nothing was shown to be on the ring: on_ring() was never reached")
    return bad


def judge(stage, behaviour, known, verbose, keep, kernel_only=False):
    """Runs all pairings. A list of complaints, empty when all is as expected."""
    complaints, expected = [], stage.run(behaviour, "")
    for role, seen in expected.items():
        if verbose:
            print(f"---- {behaviour.name} {role} (kernel)", *seen.lines, sep="\n")
        if seen.lines[-1].startswith("killed") or any(
                line.startswith(("gave up", "waited in vain")) or "= timeout after" in line for line in seen.lines):
            complaints += [f"{behaviour.name} role {role} does not work on the kernel:", *seen.lines]
    if complaints:
        return complaints
    differed = by_memory = stage.ring == "shm"
    for preloaded in () if kernel_only else behaviour.pairings()[-1:] if by_memory else behaviour.pairings()[1:]:
        for role, seen in stage.run(behaviour, preloaded).items():
            diff = difference(expected[role].lines, seen.lines)
            allowed = known["lines"] if known and known["role"] == role and preloaded in known["preloaded"] else []
            if by_memory:
                stage.crossed += "moved yes" in seen.report
                allowed = allowed if diff == allowed else []
            differed = differed or bool(allowed and diff == allowed)
            where = f"{behaviour.name} [{pairing_name(behaviour, preloaded)}] role {role}"
            if diff != allowed:
                complaints += [where + " differs from the kernel" + (" in another way than listed:" if allowed else ":"), *diff]
            if role in preloaded:
                bad = [line for line in seen.report if line.startswith("moved NO")] if by_memory else ring_complaints(
                    behaviour, role, seen)
                if bad:
                    complaints += [where + ", served by:", *bad]
                if diff != allowed or bad:
                    complaints += ["log:", *("  " + line for line in seen.log.splitlines()[-40:])]
                if keep:
                    print(f"---- log of {where}", seen.log, sep="\n")
            if verbose and diff:
                print(f"---- {where}", *seen.lines, sep="\n")
    if kernel_only:
        for role, seen in stage.run(behaviour, "").items():
            diff = difference(expected[role].lines, seen.lines)
            if diff:
                complaints += [f"{behaviour.name} role {role} is not the same twice on the kernel:", *diff]
    elif known and not differed and not complaints:
        complaints.append(f"{behaviour.name}: differences.toml lists a difference that is not there any more")
    return complaints


def read_differences(names, ring):
    with open(DIFFERENCES, "rb") as f:
        entries = tomllib.load(f).get("difference", [])
    listed = {}
    for entry in entries:
        missing = {"behaviour", "role", "preloaded", "lines", "reason", "workaround"} - entry.keys()
        if missing or entry["behaviour"] in listed or entry["behaviour"] not in names:
            raise SystemExit(f"differences.toml: bad entry {entry.get('behaviour')}: {missing or 'twice, or no such behaviour'}")
        listed[entry["behaviour"]] = entry
    # An entry for verbs is for both rings of cards.
    kind = "verbs" if ring in CARDS else ring
    return {name: entry for name, entry in listed.items() if entry.get("ring", kind) == kind}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="*", metavar="GROUP|NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--ring", default="packet", help="VMA_RING_KIND of the preloaded roles")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="pairs of namespaces used at the same time")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--keep", action="store_true", help="print the library's log")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="more environment when preloaded")
    parser.add_argument("--kernel", action="store_true", help="the kernel twice: is the behaviour itself sound?")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one behaviour in N")
    parser.add_argument("--seed", type=int, default=int(time.time() // 86400), help="of --sample; else the day")
    args = parser.parse_args()
    program = binary("behaviours")
    known = behaviours(program)
    if args.list:
        for b in known:
            print(f"{b.group:14} {b.name:32} {b.title}")
        print(len(known), "behaviours")
        return 0
    names = {b.name for b in known}
    if len(names) != len(known):
        raise SystemExit("two behaviours have the same name")
    unknown = set(args.wanted) - names - {b.group for b in known}
    if unknown:
        raise SystemExit(f"no such group or behaviour: {', '.join(sorted(unknown))}")
    chosen = [b for b in known if not args.wanted or b.name in args.wanted or b.group in args.wanted]
    if args.sample > 1:
        chosen = sampled(chosen, args.sample, args.seed)
    if left_out := LEFT_OUT.get(args.ring):
        chosen = [b for b in chosen if not left_out.fullmatch(b.name)]
    if by_kernel := BY_KERNEL.get(args.ring):
        for b in chosen:
            b.by_kernel = by_kernel.fullmatch(b.name) is not None
    chosen *= args.repeat
    return run_all(args, program, chosen, read_differences(names, args.ring))


def sampled(behaviours_, n, seed):
    """Every n-th of them in an order that the seed gives; says which ones it leaves out."""
    shuffled = sorted(behaviours_, key=lambda b: b.name)
    random.Random(seed).shuffle(shuffled)
    chosen = {b.name for b in shuffled[::n]}
    print(f"sample: {len(chosen)} of {len(behaviours_)}, seed {seed}; not run:",
          *(b.name for b in behaviours_ if b.name not in chosen), flush=True)
    return [b for b in behaviours_ if b.name in chosen]


def run_all(args, program, chosen, listed):
    begin, failed, lock = time.monotonic(), [], queue.SimpleQueue()
    env = dict(e.split("=", 1) for e in args.env)
    stages, work = [], queue.SimpleQueue()
    for b in chosen:
        work.put(b)

    def worker(stage):
        while True:
            try:
                behaviour = work.get_nowait()
            except queue.Empty:
                return
            start = time.monotonic()
            complaints = judge(stage, behaviour, listed.get(behaviour.name), args.verbose, args.keep, args.kernel)
            word = "FAILED" if complaints else "listed" if behaviour.name in listed else "ok"
            print("\n".join([f"{word:7}{behaviour.group}/{behaviour.name} {time.monotonic() - start:.1f} s", *complaints]),
                  flush=True)
            if complaints:
                lock.put(behaviour.name)

    try:
        for _ in range(max(1, min(args.jobs, len(chosen)))):
            stages.append(Stage(program, args.ring, env))
            stages[-1].open()
        with concurrent.futures.ThreadPoolExecutor(len(stages)) as pool:
            for future in [pool.submit(worker, stage) for stage in stages]:
                future.result()
    finally:
        for stage in reversed(stages):
            stage.close()
    while not lock.empty():
        failed.append(lock.get())
    print(f"{len(chosen)} behaviours over the {args.ring} ring, {len(failed)} failed, {time.monotonic() - begin:.0f} s"
          + (": " + " ".join(sorted(failed)) if failed else ""))
    if args.ring == "shm" and not args.kernel:
        crossed = sum(stage.crossed for stage in stages)
        print(f"{crossed} roles went by shared memory")
        return 1 if failed or not crossed else 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
