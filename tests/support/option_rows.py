"""The rows of src/config/options.def."""

import os
import re

DEFINITIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/config/options.def")


def option_rows():
    """Name of each variable -> its effect: in_effect or no_meaning."""
    with open(DEFINITIONS, encoding="ascii") as f:
        rows = re.split(r"(?m)^OPTION\(", f.read())[1:]
    return {"VMA_" + re.match(r"\s*\w+,\s*(\w+)", row).group(1): re.search(r"\b(in_effect|no_meaning)\b", row).group(1)
            for row in rows}
