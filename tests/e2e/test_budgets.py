"""Instructions of the hot path, in process, two shards on the virtual wire and two mlx5 rings (hot_path.cc), against their budget.

    VMA_BUDGETS_WRITE=1 python3 -B tests/e2e/test_budgets.py     # writes the figures of this tree
"""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import budgets
from netns import binary

STEPS = ("udp_send", "udp_receive", "tcp_send", "tcp_receive", "tcp_ack", "tcp_accept", "mlx5_send", "mlx5_receive")
FEW, MANY = 1000, 3000


def instructions(step):
    """Of one turn: the difference of two runs, so that the first turns, which build tables, do not count."""
    totals = []
    for times in (FEW, MANY):
        done = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null",
                               binary("hot_path"), step, str(times)], capture_output=True, text=True, timeout=100)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        totals.append(int(re.search(r"Collected : (\d+)", done.stderr).group(1)))
    return (totals[1] - totals[0]) / (MANY - FEW)


class HotPath(unittest.TestCase):
    def test_instructions(self):
        budgets.check(self, {step: instructions(step) for step in STEPS})


if __name__ == "__main__":
    unittest.main()
