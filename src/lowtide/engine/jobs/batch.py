"""Batch sizes: the largest that fits a budget, and what each one needs and yields.

Every answer comes from steps captured without running them, so looking for the largest
batch never runs out of memory. Sizes that fit this machine can be measured as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import torch

from lowtide import planners
from lowtide.engine.api import modules_of, profile, restore_function
from lowtide.engine.call.runtime import PlannedCall
from lowtide.engine.checks.meter import allocated_peak, preserved, timed
from lowtide.engine.costs.machine import told_by_linux
from lowtide.engine.training import Loss, arguments_of, training_step
from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes

log = logging.getLogger("lowtide.batch")

StepAt = Callable[[int], StepGraph]
Search = Callable[[StepGraph, int | None], Plan]

LARGEST = 1 << 20
# The sizes whose lowest peaks tell how fast the peak grows.
_FIRST, _SECOND = 1, 4


def largest_batch(
    model: Any,
    make_batch: Callable[[int], Any],
    *,
    budget: str | int,
    loss: Loss | None = None,
    planner: str = "auto",
    time_limit: float = 5.0,
) -> int:
    """The largest batch whose training step can be planned within the budget.

    Captures the step at a few sizes, without running it, and plans each; the size
    returned is one that was captured and planned, and the next larger one was not found
    to fit.

    Args:
        model: The model.
        make_batch: `make_batch(n)` returns a batch of n samples.
        budget: Peak of the whole step: `"6 GiB"` or a number of bytes. A percentage
            has no meaning here, as every batch has another baseline.
        loss: Maps the output to a scalar; it must accept every batch size.
        planner: A name of `lowtide.planners.available()`.
        time_limit: Seconds of search for each size that is tried.

    Raises:
        BudgetTooSmallError: Not even one sample fits.
    """
    return find_largest(
        lambda size: profile(model, make_batch(size), loss=loss, how="estimate"),
        to_bytes(budget),
        search=search_with(planner, time_limit),
    )[0]


def search_with(planner: str = "auto", time_limit: float = 5.0) -> Search:
    """A planner with its time limit, to be asked for a step and a budget."""
    return partial(planners.load(planner).plan, time_limit=time_limit)


def find_largest(
    step_at: StepAt,
    budget_bytes: int,
    *,
    search: Search | None = None,
    known: Mapping[int, Plan] | None = None,
) -> tuple[int, Plan]:
    """The largest size that fits, and its plan; `known` are plans that fit.

    The lowest reachable peak grows almost in proportion to the batch, so two sizes tell
    where to look, and trying sizes near there closes in on the answer.
    """
    search, step_at = search or search_with(), cache(step_at)
    # Lowest peaks known so far, by size: a line through two of them predicts others.
    lowest: dict[int, int] = {}

    def attempt(size: int) -> Plan | None:
        try:
            return search(step_at(size), budget_bytes)
        except BudgetTooSmallError as error:
            lowest[size] = error.floor_bytes
            if size == _FIRST:
                raise
            return None

    known = known or {}
    fits = max(known, default=_FIRST)
    best = known.get(fits) or attempt(_FIRST)
    assert best is not None
    for size in (_FIRST, _SECOND):
        lowest[size] = search(step_at(size), None).peak_bytes
    if lowest[_SECOND] <= lowest[_FIRST]:
        raise InvalidArgumentError(
            "lowtide.largest_batch",
            f"a batch of {_SECOND} needs {format_bytes(lowest[_SECOND])}, no more than "
            f"one of {_FIRST}",
            "Let make_batch(n) return n samples",
        )
    fails = LARGEST + 1
    guess = _crossing(lowest, budget_bytes)
    while fails - fits > 1:
        guess = min(max(guess, fits + 1), fails - 1)
        plan = attempt(guess)
        if plan is None:
            fails = guess
            guess = _crossing(lowest, budget_bytes)
            # Where the line does not close in, halve what is left.
            guess = guess if guess > fits else (fits + fails) // 2
        else:
            fits, best = guess, plan
            slack = _crossing(lowest, budget_bytes) - fits
            guess = fits + max(1, slack, fits // 64 if fails > 2 * fits else 0)
            if guess >= fails:
                guess = (fits + fails) // 2
    log.info("batch: %d fits %s", fits, format_bytes(budget_bytes))
    return fits, best


def confirm_largest(
    step_at: StepAt,
    size: int,
    budget_bytes: int,
    *,
    search: Search | None = None,
    known: Mapping[int, Plan] | None = None,
) -> tuple[int, Plan] | None:
    """The largest size up to `size` whose measured step fits, and its plan, if any.

    An estimate knows no kernel's workspace, so a size found by it may be too large. The
    peak grows almost in proportion to the batch, which tells how far to step down.
    """
    search, known = search or search_with(), known or {}
    fits = max(known, default=0)
    while size > fits:
        try:
            return size, search(step_at(size), budget_bytes)
        except BudgetTooSmallError as error:
            size = min(size - 1, int(size * budget_bytes / error.floor_bytes))
    return (fits, known[fits]) if fits else None


def _crossing(lowest: dict[int, int], budget_bytes: int) -> int:
    """Where the line through the two known sizes next to the budget meets it."""
    below = sorted(size for size, peak in lowest.items() if peak <= budget_bytes)
    above = sorted(size for size, peak in lowest.items() if peak > budget_bytes)
    first, second = (below[-1], above[0]) if below and above else sorted(lowest)[-2:]
    slope = (lowest[second] - lowest[first]) / (second - first)
    if slope <= 0:
        return (first + second) // 2
    return int(first + (budget_bytes - lowest[first]) / slope)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one step at one size takes: on this machine, or as predicted."""

    peak_bytes: int
    seconds: float
    activation_peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch size: predicted for all, measured where it fits this machine.

    What the budget cannot hold has None for its planned numbers.
    """

    batch: int
    baseline_peak_bytes: int
    baseline_seconds: float
    planned_peak_bytes: int | None
    planned_seconds: float | None
    measured_baseline: Measured | None = None
    measured_planned: Measured | None = None

    @property
    def predicted(self) -> tuple[Measured, Measured | None]:
        plain = Measured(self.baseline_peak_bytes, self.baseline_seconds)
        if self.planned_peak_bytes is None or self.planned_seconds is None:
            return plain, None
        return plain, Measured(self.planned_peak_bytes, self.planned_seconds)

    @property
    def baseline_samples_per_second(self) -> float:
        """Throughput without a plan, measured if it was."""
        return self.batch / (self.measured_baseline or self.predicted[0]).seconds

    @property
    def planned_samples_per_second(self) -> float | None:
        """Throughput with the plan, measured if it was."""
        found = self.measured_planned or self.predicted[1]
        return found and self.batch / found.seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "baseline_samples_per_second": self.baseline_samples_per_second,
            "planned_samples_per_second": self.planned_samples_per_second,
        }


def predict_row(
    batch: int, step: StepGraph, budget_bytes: int, search: Search
) -> tuple[BatchRow, Plan | None]:
    """What a size needs without a plan and with one for the budget."""
    plan = None
    with suppress(BudgetTooSmallError):
        plan = search(step, budget_bytes)
    planned = (plan.peak_bytes, plan.seconds) if plan else (None, None)
    row = BatchRow(batch, step.eager_peak_bytes, step.baseline_seconds, *planned)
    return row, plan


def measure_both(
    model: Any, batch: Any, loss: Loss | None, plan: Plan | None, *, steps: int = 3
) -> tuple[Measured, Measured | None]:
    """Peak and time without and with the plan, the two taking turns."""
    modules = modules_of(model)
    calls = [restore_function(model)]
    if plan is not None:
        calls.append(PlannedCall(calls[0], plan, modules))
    runs = [training_step(call, loss, arguments_of(batch)) for call in calls]
    with preserved(modules):
        for run in runs:
            run()
        found = [allocated_peak(run, modules, batch) for run in runs]
        samples = timed(runs, modules, steps)
    measured = [
        Measured(f.peak_bytes, median(s), f.activation_peak_bytes)
        for f, s in zip(found, samples, strict=True)
    ]
    return measured[0], measured[1] if plan is not None else None


def free_bytes() -> int:
    """Bytes that can still be allocated here; 0 if the system does not say."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    with suppress(OSError):
        return int(told_by_linux("meminfo", "MemAvailable").split()[0]) * 1024
    return 0


def best_row(rows: Sequence[BatchRow]) -> BatchRow | None:
    """The row that trains most samples per second within the budget."""
    fitting = [r for r in rows if r.planned_samples_per_second is not None]
    return max(fitting, key=lambda r: r.planned_samples_per_second or 0, default=None)
