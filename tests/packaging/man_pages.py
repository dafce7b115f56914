#!/usr/bin/env python3
"""The man pages are well made and say what the programs say: usage: man_pages.py PAGES SETTINGS PROGRAM...

mandoc has nothing against a page; the options of a program's --help, those of its subcommands included, and of its page are the
same; each variable that a page names is in SETTINGS (docs/CONFIG.md).
"""
import os
import re
import subprocess
import sys

folder, settings, *programs = sys.argv[1:]
OPTION = r"(?<![\w-])--?(?:[A-Za-z]\b|[A-Za-z][\w-]+)"
errors = []


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


def text_of(page):
    return re.sub(".\b", "", output("mandoc", "-T", "ascii", "-O", "width=200", page))


def help_of(program):
    text = output(program, "--help")
    commands = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.M)
    return text + "".join(output(program, name, "--help") for name in
                          re.findall(r"^  (\w+)", commands.group(1) if commands else "", re.M))


pages = {name.rsplit(".", 1)[0]: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
with open(settings) as f:
    variables = set(re.findall(r"^\| `(VMA_\w+)`", f.read(), re.M))
for name, page in pages.items():
    errors += output("mandoc", "-T", "lint", "-W", "warning", page).splitlines()
    errors += [f"{name}: {v} is no setting" for v in sorted(set(re.findall(r"\bVMA_\w+", text_of(page))) - variables - {name.upper()})]
for program in programs:
    name = os.path.basename(program)
    helped = set(re.findall(OPTION, help_of(program)))
    paged = set(re.findall(OPTION, text_of(pages[name])))
    errors += [f"{name}: {option} is in its help, not in its page" for option in sorted(helped - paged)]
    errors += [f"{name}: {option} is in its page, not in its help" for option in sorted(paged - helped)
               if option.startswith("--")]
    if not helped:
        errors.append(f"{name}: no options found in its help")
    print(f"{name}: {len(helped)} options")

for error in errors:
    print("ERROR:", error)
sys.exit(1 if errors or len(pages) < len(programs) else 0)
