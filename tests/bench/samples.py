"""What one measurement gives, and where its ends run."""

from dataclasses import dataclass

CLIENT_CPU, SERVER_CPU = 0, 1


@dataclass
class Sample:
    value: float
    accelerated: bool | None = None  # by the kernel's counters; None: this row cannot tell
    note: str = ""
