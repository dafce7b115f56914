"""What a program sees of TCP sockets: each case of tests/support/tcp_talk.py runs on the kernel and preloaded, against the
same kernel partner, and must see the same: results, errors, events, and what the partner was told by the wire.

KNOWN names, by case, what is allowed to differ and why; a difference that is gone fails as well, so the list stays true.
"""

import itertools
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import eventually

ports = itertools.count(7600)
KNOWN = {}
REPORTED = ("half_closed", "close_unread", "linger_zero", "linger_some", "close_data", "urgent")


class Same(case.NetCase):
    def setUp(self):
        self.second = self.a.ip.rsplit(".", 1)[0] + ".9"  # another address of the subject, and a silent one beside it
        self.silent = self.a.ip.rsplit(".", 1)[0] + ".8"
        for space, line in ((self.a, f"addr add {self.second}/24 dev {self.a.dev}"),
                            (self.a, f"neigh replace {self.silent} lladdr 02:00:00:00:00:08 dev {self.a.dev}")):
            subprocess.run(["ip", "-n", space.name, *line.split()], capture_output=True, check=False)

    def seen(self, name, preload):
        port = next(ports)
        partner = self.python(self.b, "tcp_partner.py", self.b.ip, port, start=True)
        partner.expect("ready")
        extra = {"timeout": [self.silent], "bound": [self.second]}.get(name, [])
        done = self.python(self.a, "tcp_talk.py", name, self.b.ip, port, *extra, preload=preload, timeout=90)
        line = re.search(r"(?m)^seen (.*)$", done.out)
        self.assertIsNotNone(line, done.out)
        seen = json.loads(line.group(1))
        seen.append(["exit", done.rc])
        if name in REPORTED:
            eventually(lambda: "report" in partner.out, timeout=15)
            seen.append(["partner", [json.loads(r) for r in re.findall(r"(?m)^report (.*)$", partner.out)]])
        partner.kill()
        return seen, done.out

    def compare(self, name):
        kernel, _ = self.seen(name, False)
        ours, text = self.seen(name, True)
        differences = [f"{k} {o}" for k, o in itertools.zip_longest(kernel, ours) if k != o]
        self.assertEqual(differences, KNOWN.get(name, []), text)


def _add(name):
    setattr(Same, f"test_{name}", lambda self: self.compare(name))


with open(os.path.join(case.SUPPORT, "tcp_talk.py")) as _script:
    for _name in re.search(r"(?s)CASES = \[(.*?)\]", _script.read()).group(1).replace(",", " ").split():
        _add(_name)

if __name__ == "__main__":
    case.main()
