#!/usr/bin/env python3
"""Side-by-side benchmark: kernel and ours in turn, repeat by repeat, over a veth pair made for the run.

Client on core 0, server on core 1. A ratio is taken inside one repeat; the median of the ratios comes first, then
min/median/max of both sides. The way of a cache line between the two cores is printed beside each row because it moves
every other figure on a shared machine.

    bench.py [row or id ...] [--repeats N] [--seconds S] [--also LIB.so ...] [--json FILE] [--svg FILE] [--list]

--also measures each row with another library in the same repeats, preloaded where ours is.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys

from chart import draw
from rows import ROWS
from netns import Net, binary, library, preload_env

NOISE = 0.05  # a target tolerates this much


def spread(values):
    return f"{min(values):.4g}/{statistics.median(values):.4g}/{max(values):.4g}"


def cache_line_ns():
    """One-way time of a cache line between the cores, ns."""
    out = subprocess.run([binary("cache_line"), "0", "1"], capture_output=True, text=True, timeout=30).stdout
    match = re.search(r"ns=([0-9.]+)", out)
    return float(match.group(1)) if match else None


def measure(row, net, repeats, seconds, also=()):
    def ends(lib):
        return [preload_env(lib) if row.sides in ("both", side) else None for side in ("client", "server")]
    kernel_measure = row.kernel_measure or row.measure
    record = {"id": row.id, "row": row.name, "what": row.what, "unit": row.unit, "better": row.better,
              "target": row.target, "absolute": row.absolute, "sides": row.sides, "kernel": [], "ours": [],
              "ratios": [], "also": {lib: [] for lib in also}, "accelerated": None, "errors": [], "cache_line_ns": cache_line_ns()}
    for _ in range(repeats):
        try:
            kernel = kernel_measure(net, None, None, seconds)
            ours = row.measure(net, *ends(None), seconds)
            others = [row.measure(net, *ends(lib), seconds).value for lib in also]
        except AssertionError as error:
            record["errors"].append(str(error))
            for space in (net["a"], net["b"]):
                space.end_processes()
            continue
        record["kernel"].append(kernel.value)
        record["ours"].append(ours.value)
        for lib, value in zip(also, others):
            record["also"][lib].append(value)
        if kernel.value > 0:
            record["ratios"].append(ours.value / kernel.value)
        if ours.accelerated is not None:
            record["accelerated"] = ours.accelerated and record["accelerated"] is not False
    record["ratio"] = statistics.median(record["ratios"]) if record["ratios"] else None
    if row.by_minimum and record["ratios"]:
        record["ratio"] = min(record["ours"]) / min(record["kernel"])
    record["met"] = verdict(row, record)
    return record


def verdict(row, record):
    """True, False, or None when the row has no target or no figure. What ran on the kernel meets no target."""
    if row.target is None or not record["ours"]:
        return None
    if record["accelerated"] is False:
        return False
    value = statistics.median(record["ours"]) if row.absolute else record["ratio"]
    if value is None:
        return None
    return value <= row.target * (1 + NOISE) if row.better == "less" else value >= row.target * (1 - NOISE)


def show(record):
    if not record["ours"]:
        print(f"{record['row']:18} no figure: {record['errors'][0].splitlines()[0] if record['errors'] else ''}")
        return
    ratio = f"{record['ratio']:.3f}" if record["ratio"] is not None else "-"
    bound = "-" if record["target"] is None else ("<= " if record["better"] == "less" else ">= ") + \
        f"{record['target']:.3g}" + ("" if record["absolute"] else " K")
    met = {True: "met", False: "MISSED", None: "-"}[record["met"]]
    path = {True: "accelerated", False: "on the kernel", None: ""}[record["accelerated"]]
    line = f"{record['cache_line_ns']:.0f} ns" if record["cache_line_ns"] is not None else "-"
    print(f"{record['row']:18} {ratio:>7}  {bound:>10} {met:6}  kernel {spread(record['kernel']):24} "
          f"ours {spread(record['ours']):24} {record['unit']:7} n={len(record['ours'])} line {line:7} {path}"
          f"{' errors: ' + str(len(record['errors'])) if record['errors'] else ''}", flush=True)


def show_also(record):
    for lib, values in record["also"].items():
        if values and record["kernel"]:
            ratio = statistics.median(v / k for v, k in zip(values, record["kernel"]))
            print(f"{'':18} {ratio:7.3f}  {'':17} {os.path.basename(lib):31} {'':9}{spread(values)}", flush=True)


def chosen(names):
    rows = [r for r in ROWS if not names or any(r.name == n or r.name.startswith(n + ".") for n in names)]
    for name in names:
        if not any(r.name == name or r.name.startswith(name + ".") for r in ROWS):
            raise SystemExit(f"no row {name}; there are: {' '.join(r.name for r in ROWS)}")
    return rows


def main():
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("names", nargs="*", help="row names or ids; none: all")
    parser.add_argument("--repeats", type=int, help="instead of each row's own")
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement")
    parser.add_argument("--json", help="write the records there")
    parser.add_argument("--svg", help="draw the ratios there")
    parser.add_argument("--also", action="append", default=[], metavar="LIB.so", help="measure this library, too")
    parser.add_argument("--list", action="store_true", help="show the rows and end")
    parser.add_argument("--congestion", default="cubic",
                        help="wished for the TCP rows; the machine may refuse it to namespaces")
    options = parser.parse_args()
    rows = chosen(options.names)
    for lib in options.also:
        if not os.path.exists(lib):
            parser.error(f"--also {lib}: no such file")
    also = [os.path.abspath(lib) for lib in options.also]
    if options.list:
        for row in rows:
            print(f"{row.name:18} {row.unit:7} {row.what}")
        return 0
    records = []
    with Net("ab", congestion=options.congestion) as net:
        print(f"{library()}; kernel {platform.release()}; congestion control {net.congestion}; ratio is ours/kernel, "
              f"spreads are min/median/max")
        for row in rows:
            record = measure(row, net, options.repeats or row.repeats, options.seconds, also)
            records.append(record)
            show(record)
            show_also(record)
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"kernel": platform.release(), "congestion": net.congestion, "library": library(),
                       "rows": records}, f, indent=1)
    if options.svg:
        with open(options.svg, "w") as f:
            f.write(draw(records, f"kernel {platform.release()}, {' '.join(sys.argv[1:])}"))
    return 1 if any(not r["ours"] for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
