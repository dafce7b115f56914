#!/usr/bin/env python3
"""What libvma.so must be as an ELF file (process-model 1): usage: shared_object.py LIBRARY EXPORTS INTERFACE ARCHIVE

INTERFACE is the list of symbols that the SONAME promises; EXPORTS those that hooks.def makes; ARCHIVE the same library for linking
into programs."""
import re
import subprocess
import sys

library, exports, interface, archive = sys.argv[1:5]
errors = []


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


dynamic = run("readelf", "-dW", library)
needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic))
if not {"libc.so.6"} <= needed <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}:
    errors.append(f"DT_NEEDED: {sorted(needed)}")
if "TEXTREL" in dynamic:
    errors.append("text relocations")
soname = "".join(re.findall(r"\(SONAME\).*\[(.*?)\]", dynamic))
promised, *names = open(interface).read().split()
if soname != promised:
    errors.append(f"SONAME {soname}, the interface is that of {promised}")
if not re.search(r"\(FLAGS_1\).*\bNOW\b", dynamic):
    errors.append("flag NOW is missing")
if "NODELETE" in dynamic:
    errors.append("flag NODELETE: dlclose() could not unload it")

symbols = run("nm", "-D", "--defined-only", library).splitlines()
have = {line.split()[2] for line in symbols}
want = set(open(exports).read().split())
for name in sorted(have - want):
    errors.append(f"exported by accident: {name}")
for name in sorted(want - have):
    errors.append(f"not exported: {name}")
for name in sorted(set(names) - have):
    errors.append(f"{soname} promises {name}: a library without it needs another SONAME")
for name in sorted(have - set(names)):
    errors.append(f"{name} is new: it goes into {interface}, and from then on it is promised")
have_static = set(re.findall(r"(?m)^[0-9a-f]+ \S (\S+)$", run("nm", "-g", "--defined-only", archive)))
if have_static != want:
    errors.append(f"{archive} has others: {sorted(have_static ^ want)}")
for line in symbols:
    if line.split()[1] not in "TW":
        errors.append(f"not a function: {line}")

program = run("readelf", "-lW", library)
tls = re.search(r"^\s*TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+(0x[0-9a-f]+)", program, re.M)
size = int(tls.group(1), 16) if tls else 0
if not 0 < size <= 256:
    errors.append(f"TLS is {size} bytes")
if "GNU_RELRO" not in program:
    errors.append("no RELRO")
if re.search(r"GNU_STACK.*E\s", program):
    errors.append("executable stack")
arm64 = "AArch64" in run("readelf", "-h", library)
relocations = run("readelf", "-rW", library)
if not re.search("R_AARCH64_TLS_TPREL", relocations) if arm64 else not re.search(r"\(FLAGS\).*STATIC_TLS", dynamic):
    errors.append("TLS is not of the initial-exec model")
if "UNIQUE" in run("readelf", "--dyn-syms", "-W", library):
    errors.append("STB_GNU_UNIQUE symbols")
# Dynamic TLS calls __tls_get_addr, which may allocate. libstdc++'s own, built that way, is reached by a throw only.
if arm64:  # whose compiler makes a descriptor for each such variable
    described = len(re.findall("R_AARCH64_TLSDESC", relocations))
    if described > 1:
        errors.append(f"{described} dynamic TLS variables")
else:
    function = ""
    for line in run("objdump", "-d", "--no-show-raw-insn", library).splitlines():
        if line.endswith(">:"):
            function = line.split("<")[1][:-2]
        elif re.search(r"call.*__tls_get_addr", line) and not function.startswith("__cxa_get_globals"):
            errors.append(f"dynamic TLS in {function}")

print(f"{len(have)} symbols, TLS {size} bytes, needs {sorted(needed)}")
for e in errors:
    print("ERROR:", e)
sys.exit(1 if errors else 0)
