#!/usr/bin/env python3
"""Prints the expression for ctest -E that leaves out the tests of tests/not_under_qemu.txt: usage: not_under_qemu.py TREE

A line there is a test's name, in which * is any text, and the reason. One that names no test of the tree is an error. How many
tests are left out, of how many, goes to standard error."""
import fnmatch
import os
import re
import subprocess
import sys

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/not_under_qemu.txt"), encoding="utf-8") as f:
    rows = [line.split(maxsplit=1) for line in f if line.strip() and not line.startswith("#")]
listed = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--show-only"], capture_output=True, text=True, check=True).stdout
tests = re.findall(r"^ *Test +#\d+: (\S+)", listed, re.M)
errors = [f"{row[0]} has no reason" for row in rows if len(row) < 2]
errors += [f"there is no test {name}" for name, *_ in rows if not fnmatch.filter(tests, name)]
for error in errors:
    print("ERROR: not_under_qemu.txt:", error, file=sys.stderr)
left_out = {test for name, *_ in rows for test in fnmatch.filter(tests, name)}
print(f"left out under qemu-user: {len(left_out)} of {len(tests)} tests (tests/not_under_qemu.txt)", file=sys.stderr)
print("^(" + "|".join(re.escape(name).replace(r"\*", ".*") for name, *_ in rows) + ")( |$)")  # what follows: a parameter
sys.exit(1 if errors else 0)
