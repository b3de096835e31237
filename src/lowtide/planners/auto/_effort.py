"""How much searching is left: counted in work, with the clock as a safety stop.

The same step, budget and time limit give the same plan on any machine that is fast
enough, because decisions depend on counted work and not on the clock. A work unit is
about half a microsecond on the machine this was written on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lowtide.planners.auto._problem import Problem

UNITS_PER_SECOND = 1_000_000.0


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
        self._section_units = float("inf")
        self._section_deadline = self._deadline
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
        """Seconds to the deadline of the present section."""
        return max(0.0, self._section_deadline - self._clock())

    @contextmanager
    def section(self, share: float) -> Iterator[None]:
        """Within this block the effort is over after a share of what is left."""
        outer_units, outer_deadline = self._section_units, self._section_deadline
        left = min(outer_units, self.limit_units) - self.units
        self._section_units = self.units + share * max(0.0, left)
        now = self._clock()
        # On a busy machine the clock runs out first; it is shared out the same way.
        self._section_deadline = now + share * max(0.0, outer_deadline - now)
        try:
            yield
        finally:
            self._section_units, self._section_deadline = outer_units, outer_deadline

    @contextmanager
    def extended(self, seconds: float) -> Iterator[None]:
        """Within this block there is this much effort, whatever was spent before."""
        before = (self.limit_units, self._deadline)
        inner = (self._section_units, self._section_deadline)
        self.limit_units = self.units + seconds * UNITS_PER_SECOND
        self._deadline = self._clock() + seconds
        self._section_units, self._section_deadline = float("inf"), self._deadline
        try:
            yield
        finally:
            self.limit_units, self._deadline = before
            self._section_units, self._section_deadline = inner

    def is_over(self) -> bool:
        """Whether the effort, or that of the present section, is spent."""
        if self._clock() >= self._deadline or self.units >= self.limit_units:
            self.stopped_by = "time_limit"
            return True
        return (
            self.units >= self._section_units or self._clock() >= self._section_deadline
        )
