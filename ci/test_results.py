#!/usr/bin/env python3
"""Reads a JUnit file of ctest and prints one line per test: passed, failed or skipped, a tab, the name.
With --failures it prints the last lines that each failed test wrote."""

import sys
import xml.etree.ElementTree as ElementTree

STATUS = {"run": "passed", "fail": "failed", "disabled": "skipped", "notrun": "skipped"}
LINES = 40

for case in ElementTree.parse(sys.argv[-1]).getroot().iter("testcase"):
    status = STATUS.get(case.get("status"), "failed")
    if "--failures" not in sys.argv:
        print(status, case.get("name"), sep="\t")
    elif status == "failed":
        print(f"---- {case.get('name')}", *(case.findtext("system-out") or "").splitlines()[-LINES:], sep="\n")
