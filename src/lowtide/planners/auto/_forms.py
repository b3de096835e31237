"""Which forms of its ops a step is planned with.

An op whose own arguments and results do not fit the budget cannot run, so where it has
another form, that one is taken. Forms that the budget does not ask for cost time; they
are tried where what recomputation alone finds costs more. Where ops have several forms,
the fastest are tried first, and those that need the least bytes after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from lowtide.errors import BudgetTooSmallError
from lowtide.planners._memory import recall
from lowtide.step.forms import Formed, forms, groups, in_form, replaced
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Proof
from lowtide.step.remake import remaking
from lowtide.step.schedule import make_plan, with_frees

Find = Callable[[StepGraph, int | None], Plan]
Choice = frozenset[int]
# A time that no schedule within a plan's budget beats which runs each of the first
# forms and none of the second, for a share of the work.
Prove = Callable[[StepGraph, Plan, Choice, Choice, float], float]
NONE: Choice = frozenset()
# Of so many, every choice is looked at.
MOST_FORMS = 4
# What share of the work of proving is for all cases together; the rest is for the one
# of which least is proven then.
FIRST_LOOK = 0.3


def with_forms(
    step: StepGraph, budget: int | None, find: Find, prove: Prove | None = None
) -> Plan:
    """The best plan that `find` finds, with some forms or without.

    Schedules may run forms beside what they replace. So the bound is the least of what
    `prove` says of those that run some forms and no others, for each choice of some.
    """
    if not all_forms(step):
        return find(step, budget)
    if budget is None:
        lowest = _planned(step, least_forms(step), None, find)
        if lowest.peak_bytes <= _case(step, NONE, all_forms(step)).nbytes:
            return lowest
        plain = _planned(step, NONE, None, find)
        return min(lowest, plain, key=lambda plan: (plan.peak_bytes, plan.seconds))
    best: Plan | None = None
    errors: list[BudgetTooSmallError] = []
    tried = (needed_forms(step, budget), fastest_forms(step), least_forms(step))
    for choice in dict.fromkeys(tried):
        more = _extra_seconds(step, choice)
        if best is not None and best.seconds <= step.baseline_seconds + more:
            continue
        try:
            plan = _planned(step, choice, budget, find)
        except BudgetTooSmallError as error:
            errors.append(error)
            continue
        if best is None or plan.seconds < best.seconds:
            best = plan
    if best is None:
        raise min(errors, key=lambda error: error.floor_bytes)
    if prove is None or best.proof.stopped_by == "optimal":
        return best
    return replace(best, proof=_at_least(best, _least_seconds(step, best, prove)))


def choices(step: StepGraph) -> tuple[Choice, ...]:
    """Without forms and, if there are some, with the fastest and the smallest."""
    return tuple(dict.fromkeys((NONE, fastest_forms(step), least_forms(step))))


def formed(step: StepGraph, choice: Choice) -> Formed:
    """The step with these forms; the same one each time."""
    if not all_forms(step):
        return Formed(step, tuple(range(len(step.ops))))
    return recall(step, ("forms", choice), lambda: in_form(step, choice))


def all_forms(step: StepGraph) -> Choice:
    """Every form that the step has."""
    return recall(step, "forms", lambda: frozenset(forms(step)))


def fastest_forms(step: StepGraph) -> Choice:
    """A form of everything that has one, those first that cost the least time."""
    own = _groups(step)
    return _agreeing(step, sorted(own, key=lambda group: _extra_seconds(step, group)))


def least_forms(step: StepGraph) -> Choice:
    """A form of everything that has one, those first that need the least bytes."""
    own = _groups(step)
    return _agreeing(step, sorted(own, key=lambda group: _group_bytes(step, group)))


def needed_forms(step: StepGraph, budget: int) -> Choice:
    """Forms of ops that do not fit the budget even alone."""
    room = budget - step.resident_bytes
    large = {i for i in step.baseline if _own_bytes(step, i) > room}
    own = [
        group
        for group in (_groups(step) if large else ())
        if not large.isdisjoint(_gone(step, group))
        and _group_bytes(step, group) <= room
    ]
    return _agreeing(step, sorted(own, key=lambda group: _extra_seconds(step, group)))


def _groups(step: StepGraph) -> tuple[Choice, ...]:
    return recall(step, "groups of forms", lambda: groups(step))


def _group_bytes(step: StepGraph, group: Choice) -> int:
    return max(_own_bytes(step, i) for i in group)


def _agreeing(step: StepGraph, ordered: Iterable[Choice]) -> Choice:
    """Of these, in order, all that make nothing which one before them makes."""
    chosen: set[int] = set()
    made: set[int] = set()
    for group in ordered:
        writes = {s for i in group for s in step.ops[i].writes}
        if made.isdisjoint(writes):
            chosen |= group
            made |= writes
    return frozenset(chosen)


def original_plan(step: StepGraph, choice: Choice, plan: Plan) -> Plan:
    """The plan of a step with forms as one of the step itself."""
    if not all_forms(step):
        return plan
    own = formed(step, choice)
    return make_plan(
        step,
        with_frees(step, own.original(plan.ops)),
        planner=plan.planner,
        budget_bytes=plan.budget_bytes,
        proof=_proof(step, choice, plan),
    )


def _planned(step: StepGraph, choice: Choice, budget: int | None, find: Find) -> Plan:
    own = formed(step, choice)
    try:
        found = find(own.step, budget)
    except BudgetTooSmallError as error:
        bound = min(error.bound_bytes, _least_bytes(step))
        raise BudgetTooSmallError(
            error.budget_bytes, error.floor_bytes, error.blame, bound
        ) from None
    return original_plan(step, choice, found)


def _proof(step: StepGraph, choice: Choice, plan: Plan) -> Proof:
    """What is proven of a plan, if other forms could have been chosen.

    What the search has proven holds for schedules of the ops that it knew: without
    forms those of the whole step, but for schedules that use some.
    """
    proof = plan.proof

    def is_proven(case: _Case) -> bool:
        return not choice and not case.used and bool(case.never)

    bound = min(
        (
            proof.bound_seconds if is_proven(case) else case.seconds
            for case in cases(step)
            if case.nbytes <= plan.budget_bytes
        ),
        default=0.0,
    )
    stopped = "search" if proof.stopped_by == "optimal" else proof.stopped_by
    least = min(proof.bound_bytes, _least_bytes(step))
    known = replace(proof, bound_seconds=0.0, stopped_by=stopped, bound_bytes=least)
    return _at_least(replace(plan, proof=known), bound)


def _least_seconds(step: StepGraph, plan: Plan, prove: Prove) -> float:
    """No schedule within the plan's budget takes less, whatever forms it uses."""
    fitting = [case for case in cases(step) if case.nbytes <= plan.budget_bytes]
    least = {case: case.seconds for case in fitting if case.seconds < plan.seconds}

    def look(case: _Case, share: float) -> None:
        found = prove(step, plan, case.used, case.never, share)
        least[case] = max(least[case], found)

    for case in least:
        look(case, FIRST_LOOK / len(least))
    if least:
        look(min(least, key=least.__getitem__), 1.0 - FIRST_LOOK)
    return min(least.values(), default=plan.seconds)


def _at_least(plan: Plan, seconds: float) -> Proof:
    """What is proven of a plan if no schedule takes less than this either."""
    proof = plan.proof
    bound = min(max(proof.bound_seconds, seconds), plan.seconds)
    is_least = bound >= plan.seconds * (1 - 1e-12)
    return replace(
        proof,
        bound_seconds=bound,
        gap=1.0 - bound / plan.seconds if plan.seconds > 0 else 0.0,
        stopped_by="optimal" if is_least else proof.stopped_by,
    )


class _Case(NamedTuple):
    """Schedules that run these forms and not those: what they need at least."""

    used: Choice
    never: Choice
    seconds: float
    nbytes: int


def cases(step: StepGraph) -> list[_Case]:
    """For each choice of forms, the time and the peak of what has to run with it.

    If there are many, one entry stands for all of them: what runs with every choice.
    A form whose argument only a form makes that is not chosen cannot run at all.
    """
    every = all_forms(step)
    if len(every) > MOST_FORMS:
        return [_case(step, NONE, NONE)]

    def can_run(choice: Choice) -> bool:
        read = {s for i in choice for s in step.ops[i].reads if step.producers[s]}
        return all(set(step.producers[s]) - (every - choice) for s in read)

    some = [frozenset(c) for n in range(len(every) + 1) for c in combinations(every, n)]
    return [_case(step, choice, every - choice) for choice in some if can_run(choice)]


def _case(step: StepGraph, used: Choice, never: Choice) -> _Case:
    """What schedules need that run these forms and not those."""

    def only_maker(storage: int) -> int:
        makers = [i for i in step.producers[storage] if i not in never]
        return makers[0] if len(makers) == 1 else -1

    sure = {i for i in step.baseline if step.ops[i].once}.union(used)
    sure |= {only_maker(s) for s in step.outputs} - {-1}
    read = {s for i in sure for s in step.ops[i].reads}
    walk = remaking(step, read, step.resident, maker_of=only_maker)
    sure.update(walk.ops)
    seconds = sum(step.ops[i].seconds for i in sorted(sure))
    nbytes = max((_own_bytes(step, i) for i in sure), default=0)
    return _Case(used, never, seconds, step.resident_bytes + nbytes)


def _least_bytes(step: StepGraph) -> int:
    """No schedule has a lower peak, whatever forms it uses."""
    return min(case.nbytes for case in cases(step))


def _extra_seconds(step: StepGraph, choice: Iterable[int]) -> float:
    """By how much the step is longer with these forms, if nothing runs again."""
    choice = frozenset(choice)
    gone = _gone(step, choice)
    return sum(step.ops[i].seconds for i in choice) - sum(
        step.ops[i].seconds for i in gone
    )


def _gone(step: StepGraph, choice: Iterable[int]) -> frozenset[int]:
    choice = frozenset(choice)
    return recall(step, ("replaced", choice), lambda: replaced(step, choice))


def _own_bytes(step: StepGraph, number: int) -> int:
    """What an op needs in any schedule, beside residents."""
    op = step.ops[number]
    touched = {s for s in (*op.reads, *op.writes) if not step.storages[s].resident}
    return sum(step.sizes[s] for s in touched) + step.passing_bytes[number]
