"""What a report is made from, sorted by what each thing is.

Steps, plans and frontiers are records of stages below this one. Measurements,
verifications and batch rows come from stages that need torch, which this one does not
import: it knows them by what it reads of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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


@dataclass(slots=True)
class Inputs:
    """Everything the report was given, by kind."""

    step: StepGraph | None = None
    plans: list[Plan] = field(default_factory=list[Plan])
    frontier: list[Plan] = field(default_factory=list[Plan])
    knee: Plan | None = None
    measured: dict[str, Any] = field(default_factory=dict[str, Any])
    unlabelled: list[Any] = field(default_factory=list[Any])
    verification: Any = None
    batch: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    references: list[Reference] = field(default_factory=list[Reference])
    notes: list[str] = field(default_factory=list[str])
    batch_budget_bytes: int = 0

    def unplanned_peak_bytes(self, plan: Plan) -> int:
        """The peak without lowtide, which every saving is measured from."""
        step = self.step
        return plan.baseline_peak_bytes if step is None else step.eager_peak_bytes


def sort_things(things: Iterable[Any]) -> Inputs:
    """The things by kind; raises `InvalidArgumentError` on what cannot be shown."""
    inputs = Inputs()
    _take(inputs, list(things))
    _label_measurements(inputs)
    inputs.batch.sort(key=lambda row: row["batch"])
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


def _label_measurements(inputs: Inputs) -> None:
    """Give measurements without a label one: the planned step's is the last."""
    labels = ["planned"] if inputs.plans or inputs.frontier else ["baseline"]
    if len(inputs.unlabelled) > 1:
        labels = ["baseline", "planned"]
    for label, measurement in zip(labels, inputs.unlabelled, strict=False):
        inputs.measured.setdefault(label, measurement)
    if inputs.verification is not None and inputs.verification.measured is not None:
        inputs.measured.setdefault("planned", inputs.verification.measured)


def _take(inputs: Inputs, thing: Any) -> None:
    match thing:
        case None:
            pass
        case StepGraph():
            known = inputs.step or thing
            if known.fingerprint != thing.fingerprint:
                raise InvalidArgumentError(
                    "lowtide.report(step, step)",
                    f"the steps {known.fingerprint} and {thing.fingerprint} differ",
                    "Make one report for each, or compare them with lowtide.diff",
                )
            inputs.step = thing
        case Plan():
            inputs.plans.append(thing)
        case Frontier():
            _take_frontier(inputs, thing)
        case Reference():
            inputs.references.append(thing)
        case str():
            inputs.notes.append(thing)
        case object(rss_peak_bytes=_, live_bytes=_):
            inputs.unlabelled.append(thing)
        case object(loss_equal=_, measured=_):
            inputs.verification = thing
        case object(batch=_, to_dict=to_dict):
            inputs.batch.append(_batch_row(to_dict()))
        case {"lowtide": "batch", "rows": rows, "budget_bytes": int(budget_bytes)}:
            inputs.batch_budget_bytes = budget_bytes
            _take(inputs, rows)
        case {"batch": _}:
            inputs.batch.append(_batch_row(cast(dict[str, Any], thing)))
        case dict():
            for label, value in cast(dict[str, Any], thing).items():
                if hasattr(value, "rss_peak_bytes"):
                    inputs.measured[label] = value
                else:
                    _take(inputs, value)
        case list() | tuple():
            for part in cast(Sequence[Any], thing):
                _take(inputs, part)
        case _:
            raise InvalidArgumentError(
                f"lowtide.report({type(thing).__name__})",
                "this is not something a report can show",
                "Pass steps, plans, frontiers, measurements, verifications, batch rows "
                "or notes (strings)",
            )


def point_of(plan: Plan) -> tuple[str, int, float]:
    """What tells plans apart on the frontier: one may be the best for many budgets."""
    return (plan.planner, plan.peak_bytes, plan.seconds)


def _take_frontier(inputs: Inputs, frontier: Frontier) -> None:
    known = {point_of(p) for p in inputs.frontier}
    for point in sorted(frontier.points, key=lambda p: p.budget_bytes):
        if point_of(point.plan) not in known:
            known.add(point_of(point.plan))
            inputs.frontier.append(point.plan)
    if inputs.knee is None:
        inputs.knee = frontier.knee.plan


_BATCH_FIELDS = (
    *("batch", "baseline_peak_bytes", "planned_peak_bytes"),
    *("baseline_samples_per_second", "planned_samples_per_second"),
)


def _batch_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a batch size; None where the step did not fit."""
    row = {name: values.get(name) for name in _BATCH_FIELDS}
    wrong = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**row, **dict.fromkeys(wrong)}
