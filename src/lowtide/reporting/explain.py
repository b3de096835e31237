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
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Item, Plan, Run
from lowtide.step.schedule import check_match, missing_cone, with_frees
from lowtide.step.simulate import simulate

MORE_BUDGET = 1.05


@dataclass(frozen=True, slots=True)
class Fate:
    """What a plan does with one storage.

    `fate` is "resident", "output", "kept" (held over the turn), "recomputed" (made more
    than once) or "brief" (made once, dead before the turn). `remake_seconds` is what it
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
        fates=fates(step, plan.schedule, storages),
        fates_with_more=fates(step, more.schedule, storages),
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


def fates(
    step: StepGraph, schedule: Sequence[Item], storages: Sequence[int]
) -> tuple[Fate, ...]:
    """What a schedule does with these storages."""
    baseline = with_frees(step, step.baseline)
    at_baseline_peak = _alive_at_peak(step, baseline)
    at_peak = _alive_at_peak(step, schedule)
    makings = [0] * len(step.storages)
    for item in schedule:
        if type(item) is Run:
            for s in step.ops[item.op].writes:
                makings[s] += 1
    alive_at_use = _alive_before_backward_use(step, schedule, set(storages))
    held_over_turn = _held_over_turn(step, schedule)
    outputs = frozenset(step.outputs)
    found: list[Fate] = []
    for s in storages:
        if step.storages[s].resident:
            fate = "resident"
        elif s in outputs:
            fate = "output"
        elif makings[s] > 1:
            fate = "recomputed"
        else:
            fate = "kept" if s in held_over_turn else "brief"
        cone = missing_cone(step, (s,), alive_at_use.get(s, frozenset()) - {s})
        found.append(
            Fate(
                storage=s,
                name=step.storages[s].name,
                nbytes=step.sizes[s],
                fate=fate,
                makings=makings[s],
                remake_seconds=sum(step.ops[i].seconds for i in cone),
                is_at_peak=s in at_peak,
                is_at_baseline_peak=s in at_baseline_peak,
            )
        )
    return tuple(found)


def _alive_at_peak(step: StepGraph, schedule: Sequence[Item]) -> frozenset[int]:
    peak = simulate(step, schedule).peak_index
    alive: set[int] = set(step.resident)
    for item in schedule[: peak + 1]:
        if type(item) is Run:
            alive.update(step.ops[item.op].writes)
        else:
            alive.discard(item.storage)  # type: ignore[union-attr]
    return frozenset(alive)


def _held_over_turn(step: StepGraph, schedule: Sequence[Item]) -> frozenset[int]:
    alive: set[int] = set()
    for item in schedule:
        if type(item) is not Run:
            alive.discard(item.storage)  # type: ignore[union-attr]
        elif item.op == step.turn:
            return frozenset(alive)
        else:
            alive.update(step.ops[item.op].writes)
    return frozenset()


def _alive_before_backward_use(
    step: StepGraph, schedule: Sequence[Item], asked: set[int]
) -> dict[int, frozenset[int]]:
    """For each storage, what is alive just before a backward op first reads it."""
    alive: set[int] = set(step.resident)
    found: dict[int, frozenset[int]] = {}
    for item in schedule:
        if type(item) is not Run:
            alive.discard(item.storage)  # type: ignore[union-attr]
            continue
        op = step.ops[item.op]
        if op.phase == "backward":
            for s in asked.intersection(op.reads):
                found.setdefault(s, frozenset(alive))
        alive.update(op.writes)
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
        case "recomputed":
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
    """What holds the lowest peak that can be reached."""
    plan = load("auto").plan(step, None)
    timeline = simulate(step, plan.schedule)
    item = plan.schedule[timeline.peak_index]
    op = step.ops[item.op] if type(item) is Run else None
    outputs = frozenset(step.outputs)
    rows: list[tuple[str, int, str]] = []
    by_kind: dict[str, int] = {}
    for s in _alive_at_peak(step, plan.schedule):
        storage = step.storages[s]
        if storage.resident or s in outputs:
            kind = storage.kind if storage.resident else "output " + storage.kind
            by_kind[kind] = by_kind.get(kind, 0) + step.sizes[s]
        else:
            rows.append((storage.name, step.sizes[s], storage.kind))
    if op is not None and op.scratch_bytes:
        rows.append((f"scratch of {op.name}", op.scratch_bytes, "temporary"))
    rows += [(f"all of kind {k}", b, "must stay") for k, b in by_kind.items()]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return FloorExplanation(
        floor_bytes=plan.peak_bytes,
        bound_bytes=plan.proof.bound_bytes,
        op=op.name if op else "",
        module=op.module if op else "",
        holders=tuple(rows[:most]),
    )
