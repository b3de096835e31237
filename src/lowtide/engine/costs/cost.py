"""What one op costs."""

from __future__ import annotations

from collections.abc import Sequence
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


def total_cost(costs: Sequence[Cost]) -> Cost:
    """What calls cost that run in a row as one op."""
    seconds = sum(c.seconds for c in costs)
    deviation = sum(c.seconds * c.spread for c in costs)
    return Cost(
        seconds,
        deviation / seconds if seconds else 0.0,
        max((c.scratch_bytes for c in costs), default=0),
        "measure" if all(c.how == "measure" for c in costs) else "estimate",
    )
