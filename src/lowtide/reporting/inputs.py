"""What a report is made from, sorted by what each thing is.

Steps and plans are lowtide's own records. Measurements, frontiers, verifications and
batch rows come from stages that need torch, which this one does not import: they are
told apart by their attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import check_match


@dataclass(frozen=True, slots=True)
class Reference:
    """Another method's measured point, drawn on the frontier for comparison."""

    name: str
    peak_bytes: int
    overhead: float


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a frontier, with the planner that found it."""

    planner: str
    budget_bytes: int
    peak_bytes: int
    seconds: float
    overhead: float
    plan: Plan | None = None


@dataclass(slots=True)
class Inputs:
    """Everything the report was given, by kind."""

    step: StepGraph | None = None
    plans: list[Plan] = field(default_factory=list[Plan])
    points: list[Point] = field(default_factory=list[Point])
    knee: Plan | None = None
    measured: dict[str, Any] = field(default_factory=dict[str, Any])
    unlabelled: list[Any] = field(default_factory=list[Any])
    verification: Any = None
    batch: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    references: list[Reference] = field(default_factory=list[Reference])
    notes: list[str] = field(default_factory=list[str])

    def label_measurements(self) -> None:
        """Give measurements without a label one: the planned step's is the last."""
        order = ["planned"] if self.plans or self.points else ["baseline"]
        if len(self.unlabelled) > 1:
            order = ["baseline", "planned"]
        for label, measurement in zip(order, self.unlabelled, strict=False):
            self.measured.setdefault(label, measurement)


def sort_things(things: Iterable[Any]) -> Inputs:
    """The things by kind; raises `InvalidArgumentError` on what cannot be shown."""
    inputs = Inputs()
    for thing in things:
        _take(inputs, thing)
    inputs.label_measurements()
    if inputs.step is not None:
        for plan in (*inputs.plans, *(p.plan for p in inputs.points if p.plan)):
            check_match(inputs.step, plan)
    if inputs.step is None and not inputs.plans:
        raise InvalidArgumentError(
            "lowtide.report",
            "neither a step nor a plan was given",
            "Pass the StepGraph of lowtide.profile, the Plan of lowtide.plan, or both",
        )
    return inputs


def _take(inputs: Inputs, thing: Any) -> None:
    if thing is None:
        return
    if isinstance(thing, StepGraph):
        _take_step(inputs, thing)
    elif isinstance(thing, Plan):
        inputs.plans.append(thing)
    elif isinstance(thing, Reference):
        inputs.references.append(thing)
    elif isinstance(thing, str):
        inputs.notes.append(thing)
    elif hasattr(thing, "points"):
        _take_frontier(inputs, thing)
    elif hasattr(thing, "loss_equal"):
        inputs.verification = thing
    elif (row := batch_row(thing)) is not None:
        inputs.batch.append(row)
    elif is_measurement(thing):
        _take_measurement(inputs, thing)
    elif isinstance(thing, Mapping):
        for label, value in thing.items():  # type: ignore[misc]
            if is_measurement(value):
                inputs.measured[str(label)] = value  # type: ignore[index]
            else:
                _take(inputs, value)
    elif isinstance(thing, list | tuple):
        for part in thing:  # type: ignore[misc]
            _take(inputs, part)
    else:
        raise InvalidArgumentError(
            f"lowtide.report({type(thing).__name__})",
            "this is not something a report can show",
            "Pass steps, plans, frontiers, measurements, verifications, batch rows or "
            "notes (strings)",
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


def _take_frontier(inputs: Inputs, frontier: Any) -> None:
    """Its points, once each: one plan may be the best for several budgets."""
    known = {(p.planner, p.peak_bytes, p.seconds) for p in inputs.points}
    for point in sorted(frontier.points, key=lambda p: p.budget_bytes):
        found = _point(point, frontier)
        if (found.planner, found.peak_bytes, found.seconds) not in known:
            known.add((found.planner, found.peak_bytes, found.seconds))
            inputs.points.append(found)
    knee: Plan | None = getattr(getattr(frontier, "knee", None), "plan", None)
    if inputs.knee is None:
        inputs.knee = knee


def _take_measurement(inputs: Inputs, thing: Any) -> None:
    planned = getattr(thing, "planned", None)
    label = getattr(thing, "label", "") or (
        "" if planned is None else "planned" if planned else "baseline"
    )
    if label:
        inputs.measured[label] = thing
    else:
        inputs.unlabelled.append(thing)


def is_measurement(thing: Any) -> bool:
    """Whether this looks like a `Measurement`: a measured peak and a time."""
    return (
        hasattr(thing, "peak_bytes")
        and hasattr(thing, "seconds")
        and (hasattr(thing, "samples") or hasattr(thing, "rss_peak_bytes"))
    )


def _point(point: Any, frontier: Any) -> Point:
    plan: Plan | None = getattr(point, "plan", None)
    planner = getattr(point, "planner", "") or (plan.planner if plan else "")
    return Point(
        planner=planner or getattr(frontier, "planner", "") or "plan",
        budget_bytes=int(point.budget_bytes),
        peak_bytes=int(point.peak_bytes),
        seconds=float(point.seconds),
        overhead=float(point.overhead),
        plan=plan,
    )


_BATCH_FIELDS = (
    "batch",
    "baseline_peak_bytes",
    "planned_peak_bytes",
    "samples_per_second",
    "baseline_samples_per_second",
    "planned_samples_per_second",
)


def batch_row(thing: Any) -> dict[str, Any] | None:
    """The thing as a batch row, or None if it is not one.

    A row that could not be reached (the step did not fit) has None for its numbers.
    """
    if isinstance(thing, Mapping):
        values: Mapping[str, Any] = thing  # type: ignore[assignment]
        if "batch" not in values:
            return None
    elif hasattr(thing, "batch") and hasattr(thing, "baseline_peak_bytes"):
        values = {f: getattr(thing, f, None) for f in _BATCH_FIELDS}
    else:
        return None
    row: dict[str, Any] = {f: _number(values.get(f)) for f in _BATCH_FIELDS}
    if row["planned_samples_per_second"] is None:
        row["planned_samples_per_second"] = row["samples_per_second"]
    del row["samples_per_second"]
    return row


def _number(value: Any) -> Any:
    bad = value is None or (isinstance(value, float) and not math.isfinite(value))
    return None if bad else value
