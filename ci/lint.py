#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) over the C and C++ of src/, tools/ and examples/, cppcheck (ci/cppcheck.txt) over those and tests/, as the
tree build/clang compiles them: usage: lint.py [FILE...]. Each finding is printed once; the exit status is 1 when there is one.

A header is looked at with each file that includes it, and by itself only when it is named as FILE.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "build/clang"
FINDING = re.compile(r"^/\S+:\d+:\d+: (warning|error): ")
CPPCHECK = [
    "cppcheck", "--quiet", "--enable=warning,performance,portability", "--inline-suppr", "--library=googletest", "--error-exitcode=1",
    "-D__x86_64__",  # cppcheck has no compiler's own definitions
    f"--suppressions-list={ROOT}/ci/cppcheck.txt", "--template={file}:{line}: {severity}: {message} [{id}]",
]


def findings(text):
    """The blocks of clang-tidy's output that belong to a finding, notes with them."""
    block = []
    for line in text.splitlines():
        if FINDING.match(line) and block:
            yield "\n".join(block)
            block = []
        block.append(line)
    if block:
        yield "\n".join(block)


def tidy(file):
    # The pragma is for a header that is looked at by itself.
    run = subprocess.run(
        ["clang-tidy", "-p", TREE, "--quiet", "--extra-arg=-Wno-pragma-once-outside-header", file], capture_output=True, text=True
    )
    if run.returncode and not run.stdout:  # it did not run at all
        return [f"clang-tidy {file}: {run.stderr.strip()}"]
    return list(findings(run.stdout))


def compiled():
    """The compile commands of our sources, one of each."""
    with open(TREE / "compile_commands.json", encoding="utf-8") as f:
        rows = {row["file"]: row for row in json.load(f)}
    return {file: row for file, row in sorted(rows.items()) if not file.startswith(f"{ROOT}/build/")}


def main():
    commands = compiled()
    files = [str(pathlib.Path(name).resolve()) for name in sys.argv[1:]] or list(commands)
    for file in files:
        if not file.startswith(f"{ROOT}/") or not os.path.isfile(file):
            sys.exit(f"lint.py: {file} is no file of this tree")

    seen = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(tidy, [file for file in files if not file.startswith(f"{ROOT}/tests/")]):
            for block in found:
                if block not in seen:
                    print(block, flush=True)
                seen.add(block)

    headers = [file for file in files if file not in commands]
    with tempfile.TemporaryDirectory() as scratch:
        project = os.path.join(scratch, "commands.json")
        with open(project, "w", encoding="utf-8") as f:
            json.dump([commands[file] for file in files if file in commands], f)
        runs = []
        if len(headers) < len(files):
            runs.append([*CPPCHECK, f"-j{os.cpu_count()}", f"--project={project}"])
        if headers:
            runs.append([*CPPCHECK, "--language=c++", "--std=c++20", f"-I{ROOT}/src", f"-I{ROOT}/include", *headers])
        bad = [run for run in runs if subprocess.run(run).returncode]

    print(f"{len(files)} files, {len(seen)} findings of clang-tidy, cppcheck {'has' if bad else 'has no'} findings", file=sys.stderr)
    sys.exit(1 if seen or bad else 0)


main()
