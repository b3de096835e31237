"""What a report is made from, sorted by what each thing is.

Steps, plans and frontiers are records of stages below this one. Measurements,
verifications and batch rows come from stages that need torch, which this one does not
import: the protocols here say what it reads of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from lowtide.errors import InvalidArgumentError
from lowtide.planners._sweep import Frontier
from lowtide.step.graph import StepGraph
from lowtide.step.names import with_short_names
from lowtide.step.plan import Plan
from lowtide.step.schedule import check_match


@dataclass(frozen=True, slots=True)
class Reference:
    """Another method's measured point, drawn on the frontier for comparison."""

    name: str
    peak_bytes: int
    overhead: float


@runtime_checkable
class Measured(Protocol):
    """What a report reads of a `Measurement`."""

    peak_bytes: int
    rss_peak_bytes: int
    seconds: float
    baseline_seconds: float
    live_bytes: Sequence[int]


@runtime_checkable
class Verified(Protocol):
    """What a report reads of a `Verification`."""

    loss_equal: bool
    gradients_equal: bool
    buffers_equal: bool
    rng_equal: bool
    measured: Measured | None


@runtime_checkable
class BatchSize(Protocol):
    """What a report reads of a `BatchRow`."""

    batch: int

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class Inputs:
    """Everything the report was given, by kind."""

    step: StepGraph | None = None
    plans: list[Plan] = field(default_factory=list[Plan])
    frontier: list[Plan] = field(default_factory=list[Plan])
    knee: Plan | None = None
    measured: dict[str, Measured] = field(default_factory=dict[str, Measured])
    unlabelled: list[Measured] = field(default_factory=list[Measured])
    verification: Verified | None = None
    batch: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    references: list[Reference] = field(default_factory=list[Reference])
    notes: list[str] = field(default_factory=list[str])

    def label_measurements(self) -> None:
        """Give measurements without a label one: the planned step's is the last."""
        order = ["planned"] if self.plans or self.frontier else ["baseline"]
        if len(self.unlabelled) > 1:
            order = ["baseline", "planned"]
        for label, measurement in zip(order, self.unlabelled, strict=False):
            self.measured.setdefault(label, measurement)
        if self.verification is not None and self.verification.measured is not None:
            self.measured.setdefault("planned", self.verification.measured)


def sort_things(things: Iterable[Any]) -> Inputs:
    """The things by kind; raises `InvalidArgumentError` on what cannot be shown."""
    inputs = Inputs()
    for thing in things:
        _take(inputs, thing)
    inputs.label_measurements()
    if inputs.step is not None:
        for plan in (*inputs.plans, *inputs.frontier):
            check_match(inputs.step, plan)
        inputs.step = with_short_names(inputs.step)
    elif not inputs.plans:
        raise InvalidArgumentError(
            "lowtide.report",
            "neither a step nor a plan was given",
            "Pass the StepGraph of lowtide.profile, the Plan of lowtide.plan, or both",
        )
    return inputs


def _take(inputs: Inputs, thing: Any) -> None:
    match thing:
        case None:
            pass
        case StepGraph():
            _take_step(inputs, thing)
        case Plan():
            inputs.plans.append(thing)
        case Frontier():
            _take_frontier(inputs, thing)
        case Reference():
            inputs.references.append(thing)
        case str():
            inputs.notes.append(thing)
        case Measured():
            inputs.unlabelled.append(thing)
        case Verified():
            inputs.verification = thing
        case BatchSize():
            inputs.batch.append(_batch_row(thing.to_dict()))
        case {"batch": _}:
            inputs.batch.append(_batch_row(thing))  # pyright: ignore[reportUnknownArgumentType]
        case Mapping():
            for label, value in thing.items():  # pyright: ignore[reportUnknownVariableType]
                if isinstance(value, Measured):
                    inputs.measured[str(label)] = value  # pyright: ignore[reportUnknownArgumentType]
                else:
                    _take(inputs, value)
        case list() | tuple():
            for part in thing:  # pyright: ignore[reportUnknownVariableType]
                _take(inputs, part)
        case _:
            raise InvalidArgumentError(
                f"lowtide.report({type(thing).__name__})",
                "this is not something a report can show",
                "Pass steps, plans, frontiers, measurements, verifications, batch rows "
                "or notes (strings)",
            )


def _take_step(inputs: Inputs, step: StepGraph) -> None:
    known = inputs.step
    if known is not None and known.fingerprint != step.fingerprint:
        raise InvalidArgumentError(
            "lowtide.report(step, step)",
            f"the steps {known.fingerprint} and {step.fingerprint} differ",
            "Make one report for each, or compare them with lowtide.diff",
        )
    inputs.step = step


def _take_frontier(inputs: Inputs, frontier: Frontier) -> None:
    """Its plans, once each: one may be the best for several budgets."""
    known = {(p.planner, p.peak_bytes, p.seconds) for p in inputs.frontier}
    for point in sorted(frontier.points, key=lambda p: p.budget_bytes):
        plan = point.plan
        if (plan.planner, plan.peak_bytes, plan.seconds) not in known:
            known.add((plan.planner, plan.peak_bytes, plan.seconds))
            inputs.frontier.append(plan)
    if inputs.knee is None:
        inputs.knee = frontier.knee.plan


_BATCH_FIELDS = (
    "batch",
    "baseline_peak_bytes",
    "planned_peak_bytes",
    "baseline_samples_per_second",
    "planned_samples_per_second",
)


def _batch_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a batch size; None where the step did not fit."""
    return {name: _number(values.get(name)) for name in _BATCH_FIELDS}


def _number(value: Any) -> Any:
    is_bad = isinstance(value, float) and not math.isfinite(value)
    return None if is_bad else value
