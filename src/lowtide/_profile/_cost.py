"""What one op costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["measure", "estimate"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Time and scratch of one op.

    `spread` is the median deviation of the measured times as a fraction of `seconds`.
    `how` says where the numbers come from: an op that cannot run alone is estimated
    even in a measured profile.
    """

    seconds: float
    spread: float = 0.0
    scratch_bytes: int = 0
    how: How = "measure"
