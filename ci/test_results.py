#!/usr/bin/env python3
"""Reads a JUnit file of ctest and prints one line per test: passed, failed or skipped, a tab, the name."""

import sys
import xml.etree.ElementTree as ElementTree

STATUS = {"run": "passed", "fail": "failed", "disabled": "skipped", "notrun": "skipped"}
for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    print(STATUS.get(case.get("status"), "failed"), case.get("name"), sep="\t")
