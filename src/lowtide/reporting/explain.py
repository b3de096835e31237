"""Why a storage is kept or recomputed, and what holds the floor.

All numbers come from the plan itself: what the storage weighs at the peaks, what it
costs to make it again from what the plan has alive at that place, and the same question
asked of a plan with 5 % more budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.planners import load
from lowtide.step.analysis.peak import peak_of
from lowtide.step.analysis.storages import fates
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import titles
from lowtide.step.plan import Plan, Schedule
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import check_match, levers, walk_baseline
from lowtide.step.walk import walk

MORE_BUDGET = 1.05
_HOLDERS = 12
_VERDICTS = {
    "output": "an output: it must live to the end",
    "resident": "resident: no plan can free it",
    "brief": "made once and freed early",
}


@dataclass(frozen=True, slots=True)
class StorageFate:
    """What a plan does with one storage.

    `fate` is "output", or else the word of `analysis.storages.Fate`. `remake_seconds`
    is what it takes to make it again where the backward first needs it: spent by the
    plan if it recomputes, saved if it keeps.
    """

    storage: int
    name: str
    nbytes: int
    fate: str
    makings: int
    remake_seconds: float
    is_at_peak: bool
    is_at_baseline_peak: bool

    def __str__(self) -> str:
        size, cost = format_bytes(self.nbytes), format_seconds(self.remake_seconds)
        return f"  {self.name} ({size}) is {self._verdict(size, cost)}"

    def _verdict(self, size: str, cost: str) -> str:
        match self.fate:
            case "recomputed" | "both":
                frees = "frees nothing at the peak itself"
                if self.is_at_baseline_peak and not self.is_at_peak:
                    frees = f"frees {size} at the baseline's peak"
                times = self.makings - 1
                again = "once more" if times == 1 else f"{times} times more"
                return f"made {again}: {frees}, costs {cost} each"
            case "kept":
                at = "held at the peak" if self.is_at_peak else "freed before the peak"
                return f"kept over the turn, {at}: making it again costs {cost}"
            case _:
                return _VERDICTS[self.fate]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The fates of the storages asked about, now and with 5 % more budget."""

    what: str
    fates: tuple[StorageFate, ...]
    fates_with_more: tuple[StorageFate, ...]
    budget_bytes: int
    peak_bytes: int
    overhead: float
    overhead_with_more: float

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        budget, peak = format_bytes(self.budget_bytes), format_bytes(self.peak_bytes)
        time, less = (
            format_percent(extra, signed=True)
            for extra in (self.overhead, self.overhead_with_more)
        )
        yield f"{self.what}: budget {budget}, peak {peak}, {time} time"
        pairs = zip(self.fates, self.fates_with_more, strict=True)
        for now, then in sorted(pairs, key=lambda pair: -pair[0].nbytes):
            yield str(now)
            if then.fate != now.fate:
                yield f"    with 5 % more budget: {then.fate}"
        yield f"with 5 % more budget the step would take {less} time"


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
    more, budget = plan, int(plan.budget_bytes * MORE_BUDGET)
    with suppress(BudgetTooSmallError):
        found = load("auto").plan(step, budget, time_limit=time_limit)
        more = found if found.seconds < plan.seconds else plan
    return Explanation(
        what=what,
        fates=_fates(step, plan.schedule, storages),
        fates_with_more=_fates(step, more.schedule, storages),
        budget_bytes=plan.budget_bytes,
        peak_bytes=plan.peak_bytes,
        overhead=plan.overhead,
        overhead_with_more=more.overhead,
    )


def _asked(step: StepGraph, what: str) -> tuple[int, ...]:
    """The storages that a name stands for: itself, what an op or a module makes."""
    found = [s.id for s in step.storages if s.name == what]
    if not found:
        named = [op for op in step.ops if op.name == what]
        inside = [op for op in step.ops if f"{op.module}.".startswith(f"{what}.")]
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
) -> tuple[StorageFate, ...]:
    """What a schedule does with these storages."""
    walked, baseline = walk(step, schedule), walk_baseline(step)
    words = fates(walked)
    at_peak = walked.alive_at(walked.peak_run)
    at_baseline_peak = baseline.alive_at(baseline.peak_run)
    first_use: dict[int, int] = {}  # in the backward: the run that reads it first
    for run, number in enumerate(walked.ops):
        op = step.ops[number]
        if op.phase == "backward" and op.opens < 0:
            for s in op.reads:
                first_use.setdefault(s, run)
    alive: dict[int, set[int]] = {
        run: set(walked.alive_at(run)).difference(step.ops[walked.runs[run].op].writes)
        for run in {first_use[s] for s in storages if s in first_use}
    }
    found: list[StorageFate] = []
    for s in storages:
        there = alive[first_use[s]] - {s} if s in first_use else set[int]()
        cone = missing_cone(step, (s,), there)
        found.append(
            StorageFate(
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


@dataclass(frozen=True, slots=True)
class FloorExplanation:
    """What is alive at the peak of the plan with the lowest peak, largest first."""

    floor_bytes: int
    bound_bytes: int
    op: str
    module: str
    holders: tuple[tuple[str, int, str], ...]
    levers: tuple[tuple[str, int, str], ...] = ()

    def __str__(self) -> str:
        lines = [
            f"floor {format_bytes(self.floor_bytes)} (no schedule is below "
            f"{format_bytes(self.bound_bytes)}), reached while {self.op} runs:"
        ]
        lines += [f"  {format_bytes(b):>10}  {n} ({k})" for n, b, k in self.holders]
        lines += [
            f"what would lower it: {how} ({what}, {format_bytes(nbytes)})"
            for what, nbytes, how in self.levers
        ]
        return "\n".join(lines)


def explain_floor(step: StepGraph) -> FloorExplanation:
    """What holds the lowest peak that our best planner finds."""
    plan = load("auto").plan(step, None)
    walked = walk(step, plan.schedule)
    peak = peak_of(walked)
    op = step.ops[peak.op] if peak.op >= 0 else None
    title = titles(step)[op.id] if op else ""
    outputs = frozenset(step.outputs)
    rows: list[tuple[str, int, str]] = []
    by_kind: dict[str, int] = defaultdict(int)
    for s in peak.storages:
        if s.storage in outputs:
            by_kind[f"output {s.kind}"] += s.nbytes
        elif step.storages[s.storage].resident:
            by_kind[s.kind] += s.nbytes
        else:
            rows.append((s.name, s.nbytes, s.kind))
    if op is not None and peak.scratch_bytes:
        rows.append((f"scratch of {title}", peak.scratch_bytes, "temporary"))
    rows += [(f"all of kind {k}", b, "must stay") for k, b in by_kind.items()]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return FloorExplanation(
        floor_bytes=plan.peak_bytes,
        bound_bytes=plan.proof.bound_bytes,
        op=title,
        module=op.module if op else "",
        holders=tuple(rows[:_HOLDERS]),
        levers=tuple(levers(walked)),
    )
