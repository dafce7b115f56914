"""mc_feed's feed of 16 groups to eight sockets in each: who receives, what should have come and what did."""

import re

from netns import binary, preload_env

GROUPS = 16
# Preloaded or the kernel's, sockets in each group, what they are bound to or hear; threads of one process each.
RECEIVERS = ((True, 3, "any"), (True, 1, "group"), (True, 2, "source"), (False, 2, "group"))


def receivers(space, second, preload=True, **variables):
    """(what, sockets, process) of each, ready. `second`: the source that those with "source" hear. `variables`: of the library."""
    for preloaded, sockets, what in RECEIVERS:
        process = space.start([binary("mc_feed"), "recv", space.ip, str(GROUPS), str(sockets), what, second],
                              env=preload_env(**variables) if preloaded and preload else None)
        process.expect("ready", 60)
        yield what, sockets, process


def send(space, second, rate, count, preload):
    return space.run([binary("mc_feed"), "send", space.ip, second, str(GROUPS), str(rate), str(count)],
                     env=preload_env() if preload else None, timeout=100)


def expected(out, second):
    """By (group, "all" or "source"): count and sum of what mc_feed says it sent."""
    sums = {}
    for line in out.splitlines():
        word = line.split()
        if word[:1] == ["sent"]:
            group, n, total = int(word[1]), int(word[3]), int(word[4], 16)
            every = sums.setdefault((group, "all"), [0, 0])
            every[0] += n
            every[1] = (every[1] + total) % 2**64
            if word[2] == second:
                sums[group, "source"] = [n, total]
    return sums


def received(out):
    """(group, count, sum, "" or what is wrong) of each socket."""
    return [(int(group), int(n), int(total, 16), unended)
            for group, n, total, unended in re.findall(r"^got (\d+) (\d+) ([0-9a-f]+)(.*)$", out, re.M)]


def took(out):
    return float(re.search(r"took ([0-9.]+) s", out).group(1))
