"""The 18 published models at their published sizes: the published cut beside ours.

Each step is captured without running it and priced for the class of device of the
publication. The published cut is of the activation peak, so lowtide plans for that peak
alone, with a budget as far below its own, and the extra times are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch._subclasses import FakeTensorMode

from lowtide import models, planners
from lowtide.engine.api import profile
from lowtide.errors import BudgetTooSmallError
from lowtide.models import Published
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan, walk_baseline
from lowtide.step.walk import walk

DEVICE = f"{Path(__file__).with_name('devices.toml')}:rtx2080ti"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FengRow:
    """One published model. Cuts and overheads are fractions.

    Where the published cut is below what can be reached here, `cut` is the most that
    can. That happens where the published step held much that ours does not (its library
    of convolutions took scratch bytes; ours are not known): compare the bytes then.
    """

    name: str
    batch: int
    published_cut: float
    published_overhead: float
    published_baseline_bytes: int
    published_planned_bytes: int
    cut: float
    overhead: float
    proven_overhead: float
    num_ops: int
    baseline_activation_bytes: int
    planned_activation_bytes: int

    @property
    def is_reached(self) -> bool:
        """Whether our cut is at least the published one, in whole percents as there."""
        return round(100 * self.cut) >= round(100 * self.published_cut)

    @property
    def ratio(self) -> float | None:
        """Our overhead as a share of the published one, at the published cut."""
        return self.overhead / self.published_overhead if self.is_reached else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        more = {"is_reached": self.is_reached, "ratio": self.ratio}
        return {**asdict(self), **more}


def published_step(published: Published) -> StepGraph:
    """The published step, captured without running it, priced for its device."""
    with FakeTensorMode():
        example = models.build(published.name, **published.options)  # type: ignore[arg-type]
    return profile(
        example.model,
        example.batch,
        loss=example.loss,
        how="estimate",
        device=DEVICE,
        name=published.name,
    )


def feng_row(
    published: Published,
    *,
    planner: str = "auto",
    time_limit: float = 20.0,
    progress: Progress | None = None,
) -> FengRow:
    """One row: captured, priced, planned at the published cut."""
    say = progress or (lambda text: None)
    say(f"{published.name}: capturing a batch of {published.batch}")
    step = published_step(published)
    say(f"{published.name}: planning {len(step.ops)} ops")
    cut = published.cut_percent / 100
    baseline = activation_peak_bytes(step)
    plan = plan_for_cut(step, baseline, cut, planner=planner, time_limit=time_limit)
    kept = activation_peak_bytes(step, plan)
    return FengRow(
        name=published.name,
        batch=published.batch,
        published_cut=cut,
        published_overhead=published.overhead_percent / 100,
        published_baseline_bytes=published.regular_megabytes * 10**6,
        published_planned_bytes=published.optimized_megabytes * 10**6,
        cut=1 - kept / baseline,
        overhead=plan.overhead,
        proven_overhead=_bound(plan),
        num_ops=len(step.ops),
        baseline_activation_bytes=baseline,
        planned_activation_bytes=kept,
    )


def activations_alone(step: StepGraph) -> StepGraph:
    """The step as publications count it: no residents, no outputs, no scratch."""
    lasting = frozenset(step.outputs).union(step.resident)
    storages = [replace(s, nbytes=0) if s.id in lasting else s for s in step.storages]
    ops = [replace(op, scratch_bytes=0) for op in step.ops]
    return replace(step, storages=tuple(storages), ops=tuple(ops))


def activation_peak_bytes(step: StepGraph, plan: Plan | None = None) -> int:
    """The peak of activations alone, as it is or with a plan."""
    walked = walk_baseline(step) if plan is None else walk(step, plan.schedule)
    return walked.activation_peak_bytes


def _bound(plan: Plan) -> float:
    least = plan.proof.bound_seconds / max(plan.baseline_seconds, 1e-30)
    return max(0.0, least - 1)


def plan_for_cut(
    step: StepGraph,
    baseline_activation_bytes: int,
    cut: float,
    *,
    planner: str = "auto",
    time_limit: float = 20.0,
) -> Plan:
    """The fastest plan whose activation peak is lower by the cut, or else the lowest.

    A budget bounds the whole step; here it is to bound the activations alone. So the
    plan is made for the same step with nothing but activations in it. Its proof speaks
    of that step too.
    """
    activations = activations_alone(step)
    goal = int((1 - cut) * baseline_activation_bytes)
    load = planners.load(planner).plan
    try:
        plan = load(activations, goal, time_limit=time_limit)
    except BudgetTooSmallError:
        plan = load(activations, None, time_limit=time_limit)
    return make_plan(step, plan.schedule, planner=plan.planner, proof=plan.proof)
