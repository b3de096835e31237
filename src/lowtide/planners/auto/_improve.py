"""Large neighbourhoods: undo some decisions, decide them again, keep what is better."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._greedy import Options, lower
from lowtide.planners.auto._keep import Remover, raise_up


class Incumbents(Protocol):
    """Where drafts are handed in, and what the best of them is."""

    def offer(self, draft: Draft) -> None: ...

    def best(self) -> Draft | None: ...

    def is_close(self) -> bool: ...


def improve(
    known: Incumbents, budget: float, effort: Effort, *, goal: float = 0.0
) -> None:
    """Offer ever better drafts until the effort is spent, or the bound or goal met."""
    choose = random.Random(0)
    best = known.best()
    assert best is not None
    current = best
    begun = effort.units
    while not effort.is_over():
        trial = _perturbed(current, budget, effort, choose)
        if trial.peak_bytes > budget:
            continue
        done = (effort.units - begun) / max(1.0, effort.limit_units - begun)
        heat = 0.003 * max(0.0, 1.0 - done) * trial.problem.step.baseline_seconds
        if trial.seconds - current.seconds < heat * choose.random():
            current = trial
        if trial.seconds < best.seconds * (1 - 1e-12):
            best = trial
            known.offer(best)
            if known.is_close() or best.seconds <= goal:
                return


def _perturbed(
    draft: Draft, budget: float, effort: Effort, choose: random.Random
) -> Draft:
    options = Options(
        tried=16,
        noise=_noise(draft, choose),
        limit_seconds=draft.seconds + 0.02 * draft.problem.step.baseline_seconds,
    )
    if choose.random() < 0.7:
        trial = lower(_without_some(draft, choose), budget, effort, options)
    else:
        span = draft.peak_bytes - draft.problem.resident_bytes
        target = budget - choose.random() * 0.05 * span
        trial = lower(draft, target, effort, options)
    if trial.peak_bytes > budget:
        return trial
    return raise_up(trial, budget, effort, power=choose.choice((0.0, 0.5, 1.0)))


def _without_some(draft: Draft, choose: random.Random) -> Draft:
    """The draft without a few recomputations: neighbours, or from anywhere."""
    remover = Remover(draft)
    repeated = remover.repeated()
    if not repeated:
        return draft
    picked = _picked(draft, repeated, choose)
    gone: set[int] = set()
    for position in picked:
        if position not in gone:
            gone.update(remover.removal(position).positions)
    return draft.without(sorted(gone))


def _picked(draft: Draft, repeated: list[int], choose: random.Random) -> list[int]:
    """Some of the recomputations: neighbours, one op in all layers, or anything."""
    number = choose.randint(1, min(len(repeated), 12))
    kind = choose.random()
    if kind < 0.4:
        start = choose.randrange(len(repeated) - number + 1)
        return repeated[start : start + number]
    if kind < 0.8:
        return choose.sample(repeated, number)
    classes, ops = draft.problem.op_class, draft.ops
    wanted = classes[ops[choose.choice(repeated)]]
    alike = [q for q in repeated if classes[ops[q]] == wanted]
    if choose.random() < 0.5:
        return alike
    start = choose.randrange(len(alike))
    return alike[start : start + choose.randint(1, len(alike))]


def _noise(draft: Draft, choose: random.Random) -> Callable[[int], float]:
    """Random factors, often the same for the same storage of every layer."""
    factors: dict[int, float] = {}
    sigma = choose.choice((0.1, 0.3, 0.6))
    alike = draft.problem.storage_class if choose.random() < 0.5 else None

    def factor(storage: int) -> float:
        key = alike[storage] if alike else storage
        if key not in factors:
            factors[key] = choose.lognormvariate(0.0, sigma)
        return factors[key]

    return factor
