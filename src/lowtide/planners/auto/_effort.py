"""How much searching is left: counted in work, with the clock as a safety stop.

The same step, budget and time limit give the same plan on any machine that is fast
enough, because decisions depend on counted work and not on the clock. A work unit is
about a microsecond on the machine this was written on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lowtide.planners.auto._problem import Problem

UNITS_PER_SECOND = 600_000.0


class Effort:
    """Work done so far and the limits on it."""

    def __init__(
        self,
        problem: Problem,
        seconds: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._problem = problem
        self.limit_units = max(seconds, 0.0) * UNITS_PER_SECOND
        self._clock = clock
        self.started = clock()
        self._deadline = self.started + max(seconds, 0.0)
        self.stopped_by = ""

    @property
    def units(self) -> float:
        """Work done so far."""
        return self._problem.units

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the search began."""
        return self._clock() - self.started

    def seconds_left(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self._deadline - self._clock())

    def share(self, fraction: float) -> float:
        """The unit count at which this fraction of the whole effort is spent."""
        return self.limit_units * fraction

    def is_over(self, limit_units: float | None = None) -> bool:
        """Whether the effort, or a part of it, is spent."""
        if self._clock() >= self._deadline:
            self.stopped_by = "time_limit"
            return True
        if self.units >= self.limit_units:
            self.stopped_by = "time_limit"
            return True
        return limit_units is not None and self.units >= limit_units
