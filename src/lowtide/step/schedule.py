"""From what to keep to what to run: the part that all planners share.

A planner may think in kept storages or in plain sequences of ops. `from_kept` turns the
first into the second: run the forward, drop what is not kept, and before each backward
op make what it misses, as late as possible and no more than needed. `with_frees` turns
the second into a schedule by freeing every storage after its last use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from lowtide.errors import BudgetTooSmallError, PlanMismatchError, StepFormatError
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.names import KIND_NAMES, shortened, titles
from lowtide.step.plan import Free, Item, Plan, Proof, Run, Schedule
from lowtide.step.remake import makers_in, missing_cone, remaking
from lowtide.step.simulate import simulate
from lowtide.step.walk import Walk, walk


def with_frees(step: StepGraph, sequence: Sequence[int]) -> Schedule:
    """The schedule that runs these ops in order and frees as early as possible.

    A storage lives from the op that makes it to its last read before it is made again;
    so to insert an op is to free its outputs earlier, and to leave it out is to keep
    them. Outputs of the step live on once made: their holder is outside.
    """
    held = frozenset(step.outputs).union(step.resident)
    last: dict[int, int] = {}
    freed_after: list[list[int]] = [[] for _ in sequence]
    for position, number in enumerate(sequence):
        op = step.ops[number]
        for s in op.reads:
            last[s] = position
        for s in op.writes:
            if s in last and s not in held:
                freed_after[last[s]].append(s)
            last[s] = position
    for s, position in last.items():
        if s not in held:
            freed_after[position].append(s)
    items: list[Item] = []
    for number, freed in zip(sequence, freed_after, strict=True):
        over = step.ops[number].over
        freed.sort(key=lambda s: s != over)  # what was written over is gone at once
        items.append(Run(number))
        items.extend(map(Free, freed))
    return tuple(items)


def without_spending(step: StepGraph) -> StepGraph:
    """The step as planners see it: that an update ends the use of a parameter is left
    to `settled`."""
    ops = tuple(replace(op, spends=()) if op.spends else op for op in step.ops)
    return replace(step, ops=ops)


def settled(step: StepGraph, sequence: Sequence[int]) -> list[int]:
    """The sequence with each update moved to right behind the last use of what it ends.

    Where that is, is known only when everything that runs again has its place.
    """
    last: dict[int, int] = {}
    updates: dict[int, list[int]] = {}
    others = [number for number in sequence if not step.ops[number].spends]
    for position, number in enumerate(others):
        op = step.ops[number]
        for s in (*op.reads, *op.writes):
            last[s] = position
    for op in step.ops:
        if op.spends:
            place = max(last[s] for s in op.reads if s in last)
            updates.setdefault(place, []).append(op.id)
    return [
        number
        for position, other in enumerate(others)
        for number in (other, *updates.get(position, ()))
    ]


def walk_baseline(step: StepGraph) -> Walk:
    """The walk of the unplanned step, which keeps everything to its last use."""
    return walk(step, with_frees(step, step.baseline))


def must_keep(step: StepGraph) -> frozenset[int]:
    """Forward storages that a backward needs and that cannot be made again there."""
    return frozenset(_irreplaceable(step, ()))


def saved_by_baseline(step: StepGraph) -> tuple[int, ...]:
    """Storages that cross from forward to backward when everything is kept."""
    return crossing(step, step.baseline)


def from_kept(step: StepGraph, kept: Collection[int]) -> Schedule:
    """The schedule that keeps these storages over the turn and recomputes the rest.

    Each dropped storage is made once more, just before the first backward op that needs
    it, and lives to its last use. What cannot be made again is kept whether it is in
    `kept` or not. A step without a turn runs as it is.
    """
    return with_frees(step, sequence_from_kept(step, kept))


def sequence_from_kept(step: StepGraph, kept: Collection[int]) -> list[int]:
    """The op sequence of `from_kept`."""
    if step.turn < 0:
        return list(step.baseline)
    kept = frozenset(kept).union(_irreplaceable(step, kept))
    forward, backward = _halves(step, step.baseline)
    ops, sequence = step.ops, list(forward)
    made = {s for number in forward for s in ops[number].writes}
    alive = made.intersection(kept.union(step.outputs, ops[step.turn].writes))
    alive.update(step.resident)
    for number in backward:
        if ops[number].opens < 0:
            cone = missing_cone(step, ops[number].reads, alive)
            alive.update(s for again in cone for s in ops[again].writes)
            sequence.extend(cone)
        sequence.append(number)
        alive.update(ops[number].writes)
    return sequence


def _halves(
    step: StepGraph, sequence: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """The ops up to the turn, and those behind it."""
    behind = sequence.index(step.turn) + 1
    return sequence[:behind], sequence[behind:]


def _irreplaceable(step: StepGraph, kept: Collection[int]) -> set[int]:
    """What the backward ops would miss although nothing can make it there."""
    if step.turn < 0:
        return set()
    turn = step.ops[step.turn]
    alive = set(kept).union(step.resident, step.outputs, turn.writes)
    missing: set[int] = set()
    visited: set[int] = set()
    for number in _halves(step, step.baseline)[1]:
        op, maker_of = step.ops[number], makers_in(step, step.ops[number].piece)
        walk = remaking(step, op.reads, alive, maker_of=maker_of, visited=visited)
        missing |= walk.lost
        alive.update(op.writes)
    return missing


def crossing(step: StepGraph, sequence: Sequence[int]) -> tuple[int, ...]:
    """Storages made before the turn and read after it without being made again."""
    if step.turn < 0:
        return ()
    ops, (forward, backward) = step.ops, _halves(step, sequence)
    made = {s for number in forward for s in ops[number].writes}
    made.difference_update(ops[step.turn].writes, step.resident)
    used: set[int] = set()
    for number in backward:
        used.update(made.intersection(ops[number].reads))
        made.difference_update(ops[number].writes)
    return tuple(sorted(used))


def repeated(step: StepGraph, sequence: Sequence[int]) -> tuple[int, ...]:
    """Ops that run more than once, or at all if they only stand by."""
    counts = Counter(sequence)
    return tuple(op.id for op in step.ops if counts[op.id] > (0 if op.standby else 1))


def make_plan(
    step: StepGraph,
    schedule: Sequence[Item],
    *,
    planner: str,
    budget_bytes: int | None = None,
    proof: Proof | None = None,
) -> Plan:
    """The plan of a valid schedule: simulates it and says what it keeps and reruns."""
    timeline = simulate(step, schedule)
    sequence = [item.op for item in schedule if isinstance(item, Run)]
    kept, recomputed = crossing(step, sequence), repeated(step, sequence)
    seconds, least = timeline.seconds, step.baseline_seconds
    gap = 1.0 - least / seconds if seconds > 0 else 0.0
    return Plan(
        planner=planner,
        schedule=tuple(schedule),
        fingerprint=step.fingerprint,
        budget_bytes=timeline.peak_bytes if budget_bytes is None else budget_bytes,
        peak_bytes=timeline.peak_bytes,
        baseline_peak_bytes=step.baseline_peak_bytes,
        seconds=seconds,
        baseline_seconds=least,
        kept=kept,
        recomputed=recomputed,
        proof=proof or Proof(least, gap, "rule"),
        resident_bytes=step.resident_bytes,
        step_name=step.name,
        pieces=step.pieces,
        openers=tuple(op.id for op in step.ops if op.opens >= 0),
        names={
            "kept": tuple(step.storages[s].name for s in kept),
            "recomputed": tuple(step.ops[i].name for i in recomputed),
        },
    )


def check_match(step: StepGraph, plan: Plan) -> None:
    """Raise unless the plan is one for this step: a file may claim it wrongly.

    Raises:
        PlanMismatchError: The plan was made for another step.
        InvalidScheduleError: The schedule cannot run on this one.
        StepFormatError: What it says of its schedule is not so.
    """
    if plan.fingerprint != step.fingerprint:
        raise PlanMismatchError(plan.fingerprint, step.fingerprint)
    simulate(step, plan.schedule)
    for field, told, found in (
        ("kept", plan.kept, crossing(step, plan.ops)),
        ("recomputed", plan.recomputed, repeated(step, plan.ops)),
    ):
        if told != found:
            odd = min(set(told).symmetric_difference(found), default="its order")
            raise StepFormatError(
                f"{odd} is wrong, by the schedule of the same plan", field=field
            )


def fitted(step: StepGraph, plan: Plan, budget_bytes: int | None) -> Plan | None:
    """A plan found for an equal step, as one for this step, if it fits here."""
    found = make_plan(
        step,
        plan.schedule,
        planner=plan.planner,
        budget_bytes=budget_bytes,
        proof=plan.proof,
    )
    fits = budget_bytes is None or found.peak_bytes <= budget_bytes
    return found if fits else None


def plan_or_raise(
    step: StepGraph,
    schedule: Sequence[Item],
    *,
    planner: str,
    budget_bytes: int | None,
    proof: Proof | None = None,
) -> Plan:
    """The plan of this schedule, the planner's lowest: an error if it does not fit."""
    plan = make_plan(
        step, schedule, planner=planner, budget_bytes=budget_bytes, proof=proof
    )
    if budget_bytes is not None and plan.peak_bytes > budget_bytes:
        raise BudgetTooSmallError(budget_bytes, plan.peak_bytes, blame(step, schedule))
    return plan


def blame(step: StepGraph, schedule: Sequence[Item]) -> str:
    """What is alive at the peak of a schedule, largest first, in words."""
    walked = walk(step, schedule)
    if not walked.runs:
        return ""
    kinds = {kind: column[walked.peak_run] for kind, column in walked.by_kind.items()}
    parts = [
        f"{KIND_NAMES[kind]} {format_bytes(nbytes)}"
        for kind, nbytes in sorted(kinds.items(), key=lambda kv: -kv[1])
        if nbytes * 50 > walked.peak_bytes
    ]
    op = step.ops[walked.ops[walked.peak_run]]
    where = "the code outside the graphs"
    if op.id != step.turn:
        where = shortened(titles(step)[op.id])
    hints = "".join(f"; {what}: {how}" for what, _, how in levers(walked))
    return f"{', '.join(parts[:4])} while {where} runs{hints}"


def levers(walked: Walk) -> list[tuple[str, int, str]]:
    """What else would lower a peak: what holds it, its bytes, and how.

    Only what holds a tenth of the peak or more.
    """
    step = walked.step
    held: dict[str, int] = {"gradient": 0, "activation": 0}
    for s in frozenset(step.outputs).intersection(walked.alive_at(walked.peak_run)):
        kind = step.storages[s].kind
        if kind in held:
            held[kind] += step.sizes[s]
    if any(op.spends for op in step.ops):
        held["gradient"] = 0  # they are not all there at once
    known = (
        ("gradients", held["gradient"], 'update="in_backward"'),
        ("returned outputs", held["activation"], "return only the loss"),
    )
    return [row for row in known if 10 * row[1] >= max(1, walked.peak_bytes)]
