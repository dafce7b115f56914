#!/usr/bin/env python3
"""The binary interface against that of the last release, by abidiff: usage: abi.py RECORDS LIBRARY LAYOUT...

RECORDS has a file for each library: of LIBRARY the symbols, of each LAYOUT (a program's side of vma_extra.h, built from
abi/extra_api.c) the types, too. What is gone or different is an error; a new symbol, or a function at the end of the table, is none.
With VMA_ABI_WRITE=1 the files are written, which is done for a release."""
import os
import subprocess
import sys
import tempfile

records, library, *layouts = sys.argv[1:]
errors = []


def run(*command):
    """Exit status and output. Of abidiff the status is bits: 1 and 2 failures of its own, 4 and 8 differences."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def record_of(path):
    return os.path.join(records, os.path.basename(path).split(".so")[0] + ".abi")


def difference(record, path):
    return run("abidiff", "--no-added-syms", "--no-architecture", "--suppressions", f"{records}/additions.suppr", record, path)


with tempfile.TemporaryDirectory(prefix="vt-abi-") as folder:
    # Its debug information depends on the compiler and has nothing of the interface: those functions are libc's.
    symbols = os.path.join(folder, os.path.basename(library))
    subprocess.run(["strip", "-o", symbols, library], check=True)
    for path in (symbols, *layouts):
        if os.environ.get("VMA_ABI_WRITE"):
            status, text = run("abidw", "--no-architecture", "--no-corpus-path", "--no-comp-dir-path", "--no-elf-needed",
                               "--no-show-locs", "--out-file", record_of(path), path)
        else:
            status, text = difference(record_of(path), path)
        if status:
            errors.append(f"{os.path.basename(path)}: status {status}\n{text}")
    # That abidiff sees what it is here for: two layouts are not the same, and a library with one of its symbols is not the library.
    bare = os.path.join(folder, "bare.so")
    subprocess.run(["cc", "-shared", "-o", bare, "-Wl,-soname,libvma.so.10", "-x", "c", "-"], check=True,
                   input=b"void vma_exit(void) {}\n")
    for record, path in ((layouts[0], layouts[-1]), (library, bare)):
        status, text = difference(record_of(record), path)
        if not status & 4:
            errors.append(f"abidiff sees no difference between {record} and {path}: status {status}\n{text}")

print(f"{1 + len(layouts)} interfaces")
for error in errors:
    print("ERROR:", error)
sys.exit(1 if errors else 0)
