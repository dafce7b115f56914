#!/usr/bin/env python3
"""The include rule (ARCHITECTURE.md), read off the #include lines of the tree; prints each offending edge.

Who may include whom is the table below, transitively. The same table stands in CMakeLists.txt as link lists, and the
two must be equal. Folders of src/ that the table does not know are errors, so that a new layer gets a place on purpose.
"""

import pathlib
import re
import sys

LINKS = {
    "base": set(),
    "wire": {"base"},
    "pkt": {"base"},
    "config": {"base"},
    "stats": {"base"},
    "stack": {"wire", "pkt", "base"},
    "dev": {"pkt", "base"},
    "engine": {"stack", "dev", "config", "stats"},
    "repair": {"stack", "wire", "base"},
    "broker": {"repair", "stack", "base"},
    "sock": {"engine", "repair", "broker"},
    "extra": {"sock"},
    "intercept": {"extra", "sock"},
}
# Tools that stay below the engine. Other tools and the tests may reach anywhere.
TOOL_LINKS = {"stats": {"stats", "base"}, "capture": {"stats", "base"}, "vmad": {"broker", "engine", "repair", "stack", "dev", "base"}}
# The one file that reads clocks; and what sans-io code must not see of the process it runs in.
CLOCK_READERS = {"engine", "sock", "extra", "intercept"}
SANS_IO = {"wire", "stack"}
PROCESS_HEADERS = re.compile(
    r"(base/(clock|sys|own_fd|lock|spin_lock)\.h|mutex|shared_mutex|thread|condition_variable|chrono|ctime|time\.h|unistd\.h"
    r"|fcntl\.h|sys/(socket|epoll|mman|ioctl|syscall|time)\.h|pthread\.h)$")
# What the time of day is for: stamps that programs and people read. What is waited for goes by CLOCK_MONOTONIC: the time of day jumps.
TIME_OF_DAY = re.compile(r"realtime_ns\(\)|CLOCK_REALTIME|system_clock|gettimeofday\(|\btime\((nullptr|NULL|0)\)|(pthread_cond|pthread_mutex|sem)_timed\w*\(")
STAMPS = {
    "base/clock.h", "engine/shard.cc", "engine/shard_stamps.cc", "engine/device_clock.cc", "engine/udp_pacing.cc",  # of datagrams
    "sock/udp_order.cc", "sock/epoll_order.cc",  # and their order
    "engine/runtime.cc",  # the banner
    "stats/reader.cc",  # the age of a file
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def reachable(layer):
    seen, todo = {layer}, [layer]
    while todo:
        for below in LINKS[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def includes(path):
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if match:
                yield number, match.group(1) or match.group(2)


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cc", ".c", ".def") and p.is_file())


def check_sources(root):
    for folder in sorted(p for p in (root / "src").iterdir() if p.is_dir()):
        layer = folder.name
        if layer not in LINKS:
            if sources(folder):
                yield f"src/{layer}/: not a layer of the table in ci/check_layers.py"
            continue
        allowed = reachable(layer)
        for path in sources(folder):
            for number, name in includes(path):
                where, to = f"{path.relative_to(root)}:{number}", name.split("/")[0]
                if name == "base/clock.h" and layer not in CLOCK_READERS and path.stem != "clock":
                    yield f"{where}: {layer} -> {name}: time comes in as an argument below the engine"
                elif layer in SANS_IO and PROCESS_HEADERS.match(name):
                    yield f"{where}: {layer} -> {name}: sans-io code sees no clock, lock, fd or environment"
                elif "/" in name and to in LINKS and to not in allowed:
                    yield f"{where}: {layer} -> {to} ({name})"


def check_time_of_day(root):
    for path in sources(root / "src") + sources(root / "tools" / "vmad"):
        if any(path == root / "src" / name for name in STAMPS):
            continue
        with open(path, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if TIME_OF_DAY.search(re.sub(r"//.*|/\*.*?\*/|\"[^\"]*\"", "", line)):
                    yield f"{path.relative_to(root)}:{number}: the time of day is for stamps; what is waited for goes by CLOCK_MONOTONIC"


def check_tools(root):
    for tool, allowed in TOOL_LINKS.items():
        for path in sources(root / "tools" / tool):
            for number, name in includes(path):
                to = name.split("/")[0]
                if "/" in name and to in LINKS and to not in allowed:
                    yield f"{path.relative_to(root)}:{number}: tools/{tool} -> {to} ({name})"


def check_links(root):
    text = (root / "CMakeLists.txt").read_text()
    found = {m.group(1): set((m.group(2) or "").split())
             for m in re.finditer(r"^vma_layer\((\w+)(?:\s+LINKS\s+([\w\s]+))?\)", text, re.M)}
    for layer, links in LINKS.items():
        if layer != "intercept" and found.get(layer) != links:
            yield f"CMakeLists.txt: vma_layer({layer}) links {found.get(layer)}, the rule is {links}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    problems = [*check_sources(root), *check_time_of_day(root), *check_tools(root), *check_links(root)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
