"""How much searching is left: counted in work, not by the clock.

The same step, budget and time limit give the same plan on every machine, however busy
it is, because a second stands for a fixed amount of work (`Evaluator`). The clock is
looked at only in an emergency: when a search takes many times its limit. It is the
processor's time of this thread, which stands still while others have the processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lowtide.planners.auto._evaluator import Evaluator

# A machine that is this many times slower than assumed may finish.
PATIENCE = 10.0
PATIENCE_SECONDS = 30.0


class Effort:
    """Work done so far and the limits on it."""

    def __init__(
        self,
        evaluator: Evaluator,
        seconds: float,
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._evaluator = evaluator
        self._clock = clock
        self.started = clock()
        self._emergency = self.started + PATIENCE * seconds + PATIENCE_SECONDS
        self._limit = max(seconds, 0.0) * evaluator.units_per_second
        self._section = self._limit
        self._set_aside = 0.0
        self._is_late = False

    @property
    def stopped_by(self) -> str:
        """What ended the search, or nothing if it could have gone on."""
        if self._is_late:
            return "clock"
        return "time_limit" if self._evaluator.units >= self._limit else ""

    @property
    def limit_units(self) -> float:
        """Where the work of the present section ends."""
        return 0.0 if self._is_emergency() else min(self._section, self._limit)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of work since the search began, by count."""
        return self._evaluator.units / self._evaluator.units_per_second

    def seconds_left(self) -> float:
        """Seconds of work to the end of the present section."""
        left = self.limit_units - self._evaluator.units
        return max(0.0, left) / self._evaluator.units_per_second

    @contextmanager
    def section(self, share: float) -> Iterator[None]:
        """Within this block the effort is over after a share of what is left."""
        outer, aside = self._section, self._set_aside
        done = self._evaluator.units
        self._section = done + share * max(0.0, min(outer, self._limit) - done)
        try:
            yield
        finally:
            self._section = outer + self._set_aside - aside

    @contextmanager
    def aside(self, seconds: float) -> Iterator[None]:
        """Within this block there is this much effort, which does not count outside."""
        limit, section = self._limit, self._section
        begun = self._evaluator.units
        units = seconds * self._evaluator.units_per_second
        self._limit = self._section = begun + units
        self._emergency += PATIENCE * seconds
        try:
            yield
        finally:
            used = self._evaluator.units - begun
            self._limit, self._section = limit + used, section + used
            self._set_aside += used

    def is_over(self) -> bool:
        """Whether the effort, or that of the present section, is spent."""
        return self._evaluator.units >= self.limit_units

    def _is_emergency(self) -> bool:
        self._is_late = self._is_late or self._clock() >= self._emergency
        return self._is_late
