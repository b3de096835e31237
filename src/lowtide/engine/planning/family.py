"""Plans that serve other sizes than they were made for.

A schedule says nothing about sizes: it is valid for every step with the same structure,
that is, the same ops that read and write the same storages. Which of the schedules
known for a structure is the fastest that keeps the budget is simulated for the new
sizes; nothing is searched or measured anew. What an op takes beside its results was
measured for the larger sizes, so it is not underestimated for the smaller.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan, with_frees

# How much more bytes a storage may have than where its op was measured. What ops take
# beside their results is taken to grow as much.
_MOST_GROWTH = 1.5
# Where a faster plan is worth a search: more recomputation than this, and a budget of
# which this part is not used.
_LEAST_OVERHEAD = 0.01
_LEAST_ROOM = 0.05
# How many peaks between the budget and the baseline schedules are searched for.
_RUNGS = 4


@dataclass(frozen=True)
class Member:
    """A plan, the step that it was made for, and the bare step of its graph alone."""

    bare: StepGraph
    step: StepGraph
    plan: Plan


@dataclass
class Family:
    """The plans of each structure that has been planned."""

    members: dict[str, list[Member]] = field(default_factory=dict[str, list[Member]])

    def add(self, bare: StepGraph, step: StepGraph, plan: Plan) -> None:
        """Keep a plan for other sizes."""
        self.members.setdefault(structure_of(bare), []).append(Member(bare, step, plan))

    def resized(
        self, bare: StepGraph, most_growth: float = _MOST_GROWTH
    ) -> tuple[StepGraph, Member] | None:
        """The step around this graph, from one that was measured at similar sizes."""
        members = self.members.get(structure_of(bare), [])
        growths = {growth_of(m.bare, bare): m for m in members}
        growth = min(growths, default=math.inf)
        if math.isinf(growth) or growth > most_growth:
            return None
        return resized(growths[growth], bare, max(1.0, growth)), growths[growth]

    def plan_for(self, bare: StepGraph) -> Plan | None:
        """The plan of this graph at the most similar sizes, as it is for these."""
        found = self.resized(bare, most_growth=math.inf)
        if found is None:
            return None
        step, member = found
        return make_plan(step, member.plan.schedule, planner=member.plan.planner)

    def fastest(
        self, step: StepGraph, bare: StepGraph, limit_bytes: int
    ) -> Plan | None:
        """The fastest of the known schedules that keeps the limit on this step."""
        members = self.members[structure_of(bare)]
        planners = {m.plan.schedule: m.plan.planner for m in members}
        if not any(op.spends for op in step.ops):
            planners.setdefault(with_frees(step, step.baseline), "keep_all")
        plans = [
            make_plan(step, schedule, planner=planner, budget_bytes=limit_bytes)
            for schedule, planner in planners.items()
        ]
        fitting = [plan for plan in plans if plan.peak_bytes <= limit_bytes]
        return min(fitting, key=lambda plan: plan.seconds, default=None)

    def add_rung(
        self,
        plan: Plan,
        member: Member,
        limit_bytes: int,
        search: Callable[[StepGraph, int], Plan],
    ) -> bool:
        """Search for a schedule with less recomputation, if this plan leaves room."""
        room = limit_bytes - plan.peak_bytes
        if plan.overhead < _LEAST_OVERHEAD or room < _LEAST_ROOM * limit_bytes:
            return False
        part = room / max(1, plan.baseline_peak_bytes - plan.peak_bytes)
        rung = min(_RUNGS - 1, int(part * _RUNGS))
        low, high = member.plan.budget_bytes, member.step.baseline_peak_bytes
        limit = low + rung * (high - low) // _RUNGS
        known = self.members[structure_of(member.bare)]
        if rung < 1 or any(m.plan.budget_bytes == limit for m in known):
            return False
        known.append(replace(member, plan=search(member.step, limit)))
        return True


def structure_of(step: StepGraph) -> str:
    """A hash of what a schedule depends on: ops and storages without their sizes."""
    digest = hashlib.sha256()
    for op in step.ops:
        row = (op.target, op.reads, op.writes, op.phase, op.piece, op.once)
        digest.update(repr((*row, op.standby, op.opens, op.spends, op.over)).encode())
    for s in step.storages:
        digest.update(repr((s.kind, s.resident, s.dtype)).encode())
    digest.update(repr(step.outputs).encode())
    return digest.hexdigest()[:16]


def growth_of(old: StepGraph, new: StepGraph) -> float:
    """By what factor the storage grows that grows most; below 1 if all shrink."""
    pairs = zip(old.sizes, new.sizes, strict=True)
    return max((b / a if a else math.inf for a, b in pairs if b), default=1.0)


def resized(member: Member, bare: StepGraph, growth: float) -> StepGraph:
    """The member's step with the sizes of this graph.

    What surrounds the graph, and so stands behind its storages, stays as it is.
    """
    known = member.step.storages
    own = zip(known, bare.storages, strict=False)
    sized = [replace(old, nbytes=new.nbytes, shape=new.shape) for old, new in own]
    return replace(
        member.step,
        storages=(*sized, *known[len(sized) :]),
        ops=tuple(
            replace(op, scratch_bytes=math.ceil(op.scratch_bytes * growth))
            for op in member.step.ops
        ),
        facts={**member.step.facts, **bare.facts},
    )
