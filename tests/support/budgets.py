"""Instructions of one turn of a step, as callgrind counts them, against tests/e2e/budgets.txt: a change of more than 3 % in either
direction fails, so that no step becomes dearer unseen, and one that became cheaper is written down.

The figures are those of the release preset with Debian 12's g++; the tests that use them are not registered for others.
"""

import os

BUDGETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e/budgets.txt")
TOLERANCE = 0.03
# An acknowledgement moves a deadline, and how often that deadline is due in between depends on how fast the machine is.
WIDER = {"tcp_ack": 0.1}


def read():
    with open(BUDGETS, encoding="ascii") as f:
        return {name: int(count) for name, count in (line.split() for line in f)}


def check(test, found):
    """{step: instructions}. With VMA_BUDGETS_WRITE=1 they are the new budget."""
    for step, count in found.items():
        print(f"{step} {count:.1f} instructions")
    budgets = read()
    if os.environ.get("VMA_BUDGETS_WRITE"):
        budgets |= {step: round(count) for step, count in found.items()}
        with open(BUDGETS, "w", encoding="ascii") as f:
            f.writelines(f"{step} {count}\n" for step, count in budgets.items())
        return
    for step, count in found.items():
        with test.subTest(step):
            test.assertGreater(count, 0, "nothing was counted")
            test.assertLessEqual(abs(count - budgets[step]), WIDER.get(step, TOLERANCE) * budgets[step],
                                 f"{count:.0f} instructions, {budgets[step]} in budgets.txt")
