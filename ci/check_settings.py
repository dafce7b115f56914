#!/usr/bin/env python3
"""Every variable of src/config/options.def has an observable: tests/settings.toml names it and the tests that look at it. Those
tests exist, and one of them at least names the variable. One without a meaning is not in the table: a test of the notice takes
all of them from options.def."""

import ast
import os
import re
import sys
import tomllib

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests")
sys.path.insert(0, os.path.join(TESTS, "support"))
from option_rows import option_rows  # noqa: E402


def source_of(test):
    """The text of "FILE Suite.Name" (a method of a class, a test of GoogleTest with the tables of its file) or of a packet script;
    "" when there is none."""
    path, _, name = test.partition(" ")
    try:
        with open(os.path.join(TESTS, path), encoding="utf-8") as f:
            text = f.read()
    except OSError:
        return ""
    if path.endswith(".script"):
        return text
    suite, _, case = name.partition(".")
    if path.endswith(".cc"):
        return text if re.search(rf"\bTEST(_F|_P)?\({suite},\s*{case}\)", text) else ""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == suite:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == case:
                    return ast.get_source_segment(text, method)
    return ""


def faults(rows, table):
    observed = table["observed"]
    for name, effect in rows.items():
        if effect == "in_effect" and name not in observed:
            yield f"{name} is in effect and nothing observes it"
    for name, (observable, *tests) in observed.items():
        if rows.get(name) != "in_effect":
            yield f"{name} is observed, options.def says {rows.get(name)}"
        if not observable or not tests:
            yield f"{name} has no observable or no test"
        sources = {test: source_of(test) for test in tests}
        for test, source in sources.items():
            if not source:
                yield f"{name}: there is no test {test}"
        if not any(re.search(rf"\b{name}\b", source) for source in sources.values()):
            yield f"{name}: none of its tests names it"


def main():
    with open(os.path.join(TESTS, "settings.toml"), "rb") as f:
        table = tomllib.load(f)
    found = list(faults(option_rows(), table))
    for fault in found:
        print(f"tests/settings.toml: {fault}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
