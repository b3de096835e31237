"""Why a storage is kept or recomputed, and what holds the floor.

All numbers come from the plan itself: what the storage weighs at the peaks, what its
making again costs from what the plan has alive at that place, and the same question
asked of a plan with 5 % more budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.planners import load
from lowtide.step.analysis import fates, peak_of
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Schedule
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import check_match, walk_baseline
from lowtide.step.walk import Walk, walk

MORE_BUDGET = 1.05


@dataclass(frozen=True, slots=True)
class Fate:
    """What a plan does with one storage.

    `fate` is "output", or else the word of `lowtide.step.analysis.Fate`: "resident",
    "kept" over the turn, "recomputed", "both" or "brief". `remake_seconds` is what it
    takes to make it again where the backward first needs it: spent by the plan if it
    recomputes, saved if it keeps.
    """

    storage: int
    name: str
    nbytes: int
    fate: str
    makings: int
    remake_seconds: float
    is_at_peak: bool
    is_at_baseline_peak: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """The fates of the storages asked about, now and with 5 % more budget."""

    what: str
    fates: tuple[Fate, ...]
    fates_with_more: tuple[Fate, ...]
    budget_bytes: int
    peak_bytes: int
    overhead: float
    overhead_with_more: float

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(
    step: StepGraph, plan: Plan, what: str, *, time_limit: float = 5.0
) -> Explanation:
    """Why the plan treats a storage, or the storages of a module, as it does.

    Args:
        step: The step the plan is for.
        plan: The plan to explain.
        what: Name of a storage, an op or a module.
        time_limit: Seconds for the plan with more budget it is compared with.
    """
    check_match(step, plan)
    storages = _asked(step, what)
    more = _with_more(step, plan, time_limit)
    return Explanation(
        what=what,
        fates=_fates(step, plan.schedule, storages),
        fates_with_more=_fates(step, more.schedule, storages),
        budget_bytes=plan.budget_bytes,
        peak_bytes=plan.peak_bytes,
        overhead=plan.overhead,
        overhead_with_more=more.overhead,
    )


def _with_more(step: StepGraph, plan: Plan, time_limit: float) -> Plan:
    budget = int(plan.budget_bytes * MORE_BUDGET)
    try:
        more = load("auto").plan(step, budget, time_limit=time_limit)
    except BudgetTooSmallError:
        return plan
    return more if more.seconds < plan.seconds else plan


def _asked(step: StepGraph, what: str) -> tuple[int, ...]:
    """The storages that a name stands for: itself, what an op or a module makes."""
    found = [s.id for s in step.storages if s.name == what]
    if not found:
        named = [op for op in step.ops if op.name == what]
        inside = [
            op
            for op in step.ops
            if op.module == what or op.module.startswith(what + ".")
        ]
        found = [s for op in named or inside for s in op.writes]
    if not found:
        raise InvalidArgumentError(
            f"explain {what!r}",
            f"no storage, op or module of {step.name} has this name",
            "Use a name from the plan's kept or recomputed list, or a module path",
        )
    return tuple(dict.fromkeys(found))


def _fates(
    step: StepGraph, schedule: Schedule, storages: Sequence[int]
) -> tuple[Fate, ...]:
    """What a schedule does with these storages."""
    walked = walk(step, schedule)
    words = fates(walked)
    at_peak = walked.alive_at(walked.peak_run)
    baseline = walk_baseline(step)
    at_baseline_peak = baseline.alive_at(baseline.peak_run)
    first_use = _first_backward_uses(walked)
    alive: dict[int, set[int]] = {
        run: set(walked.alive_at(run)).difference(step.ops[walked.runs[run].op].writes)
        for run in {first_use[s] for s in storages if s in first_use}
    }
    found: list[Fate] = []
    for s in storages:
        there = alive[first_use[s]] - {s} if s in first_use else set[int]()
        cone = missing_cone(step, (s,), there)
        found.append(
            Fate(
                storage=s,
                name=step.storages[s].name,
                nbytes=step.sizes[s],
                fate="output" if s in step.outputs else words[s].word,
                makings=words[s].times_made,
                remake_seconds=sum(step.ops[i].seconds for i in cone),
                is_at_peak=s in at_peak,
                is_at_baseline_peak=s in at_baseline_peak,
            )
        )
    return tuple(found)


def _first_backward_uses(walk: Walk) -> dict[int, int]:
    """For each storage that the backward reads, the run that reads it first."""
    found: dict[int, int] = {}
    for run, number in enumerate(walk.ops):
        op = walk.step.ops[number]
        if op.phase == "backward" and op.opens < 0:
            for s in op.reads:
                found.setdefault(s, run)
    return found


def _lines(explanation: Explanation) -> list[str]:
    lines = [
        f"{explanation.what}: budget {format_bytes(explanation.budget_bytes)}, "
        f"peak {format_bytes(explanation.peak_bytes)}, "
        f"{format_percent(explanation.overhead, signed=True)} time"
    ]
    pairs = zip(explanation.fates, explanation.fates_with_more, strict=True)
    for now, then in sorted(pairs, key=lambda pair: -pair[0].nbytes):
        lines.append(_sentence(now))
        if then.fate != now.fate:
            lines.append(f"    with 5 % more budget: {then.fate}")
    lines.append(
        "with 5 % more budget the step would take "
        f"{format_percent(explanation.overhead_with_more, signed=True)} time"
    )
    return lines


def _sentence(fate: Fate) -> str:
    size, cost = format_bytes(fate.nbytes), format_seconds(fate.remake_seconds)
    head = f"  {fate.name} ({size}) is "
    match fate.fate:
        case "recomputed" | "both":
            frees = (
                f"frees {size} at the baseline's peak"
                if fate.is_at_baseline_peak and not fate.is_at_peak
                else "frees nothing at the peak itself"
            )
            times = fate.makings - 1
            again = "once more" if times == 1 else f"{times} times more"
            return f"{head}made {again}: {frees}, costs {cost} each"
        case "kept":
            where = "held at the peak" if fate.is_at_peak else "dead before the peak"
            return f"{head}kept over the turn, {where}: making it again costs {cost}"
        case "output":
            return f"{head}an output: it must live to the end"
        case "resident":
            return f"{head}resident: no plan can free it"
        case _:
            return f"{head}made once and freed early"


@dataclass(frozen=True, slots=True)
class FloorExplanation:
    """What is alive at the peak of the plan with the lowest peak, largest first."""

    floor_bytes: int
    bound_bytes: int
    op: str
    module: str
    holders: tuple[tuple[str, int, str], ...]

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        lines = [
            f"floor {format_bytes(self.floor_bytes)} (no schedule is below "
            f"{format_bytes(self.bound_bytes)}), reached while {self.op} runs{where}:"
        ]
        lines += [f"  {format_bytes(b):>10}  {n} ({k})" for n, b, k in self.holders]
        return "\n".join(lines)


def explain_floor(step: StepGraph, *, most: int = 12) -> FloorExplanation:
    """What holds the lowest peak that our best planner finds."""
    plan = load("auto").plan(step, None)
    peak = peak_of(walk(step, plan.schedule))
    op = step.ops[peak.op] if peak.op >= 0 else None
    outputs = frozenset(step.outputs)
    rows: list[tuple[str, int, str]] = []
    by_kind: dict[str, int] = {}
    for s in peak.storages:
        is_output = s.storage in outputs
        if is_output or step.storages[s.storage].resident:
            kind = "output " + s.kind if is_output else s.kind
            by_kind[kind] = by_kind.get(kind, 0) + s.nbytes
        else:
            rows.append((s.name, s.nbytes, s.kind))
    if op is not None and peak.scratch_bytes:
        rows.append((f"scratch of {op.name}", peak.scratch_bytes, "temporary"))
    rows += [(f"all of kind {k}", b, "must stay") for k, b in by_kind.items()]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return FloorExplanation(
        floor_bytes=plan.peak_bytes,
        bound_bytes=plan.proof.bound_bytes,
        op=op.name if op else "",
        module=op.module if op else "",
        holders=tuple(rows[:most]),
    )
