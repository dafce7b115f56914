#!/usr/bin/env python3
"""What of src/ the tests of a coverage tree have run: usage: coverage.py TREE REPORT. Prints a table of lines and branches by
folder, as gcovr counts them, and leaves in the folder REPORT one page per file (index.html)."""

import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
tree, report = (pathlib.Path(name).resolve() for name in sys.argv[1:])
report.mkdir(parents=True, exist_ok=True)
subprocess.run(
    [
        "gcovr", "--root", ROOT, "--object-directory", tree, "--filter", f"{ROOT}/src/", "--exclude-throw-branches",
        "--exclude-unreachable-branches", "--json-summary", report / "summary.json", "--html-details", report / "index.html", tree,
    ],
    check=True,
)

folders = collections.defaultdict(collections.Counter)
with open(report / "summary.json", encoding="utf-8") as f:
    for file in json.load(f)["files"]:
        path = pathlib.PurePath(file["filename"])
        for folder in (path.parts[1], "all of src"):
            for what in ("line_total", "line_covered", "branch_total", "branch_covered"):
                folders[folder][what] += file[what]
if not folders["all of src"]["line_covered"]:
    sys.exit("coverage.py: no file of src/ was run")


def share(counts, what):
    total = counts[f"{what}_total"]
    return f"{100 * counts[f'{what}_covered'] / total:7.1f} %" if total else "        -"


print(f"{'folder':12} {'lines':>8} {'run':>9} {'branches':>9} {'taken':>9}")
for folder in sorted(folders, key=lambda name: (name == "all of src", name)):
    counts = folders[folder]
    print(f"{folder:12} {counts['line_total']:8} {share(counts, 'line')} {counts['branch_total']:9} {share(counts, 'branch')}")
print(f"pages: {report}/index.html", file=sys.stderr)
