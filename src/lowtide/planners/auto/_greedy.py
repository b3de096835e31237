"""Eviction until the draft fits: the best excess per second first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._evict import Eviction, Evictor


@dataclass(frozen=True, slots=True)
class Options:
    """How `lower` chooses.

    `tried` gaps are scored exactly per round; evictions whose score is at least `batch`
    of the best are taken together. `noise` multiplies scores by a factor per storage.
    Above `limit_seconds` the search gives up: the result could not be used.
    """

    tried: int = 48
    batch: float = 0.7
    noise: Callable[[int], float] | None = None
    limit_seconds: float = np.inf


def lower(
    draft: Draft, budget: float, effort: Effort, options: Options | None = None
) -> Draft:
    """A draft that fits the budget, or the nearest to it that evictions reach."""
    options = options or Options()
    problem = draft.problem
    rate = 0.0
    excess = _excess(draft, budget)
    while draft.peak_bytes > budget and draft.seconds < options.limit_seconds:
        if effort.is_over():
            break
        evictor = Evictor(draft, budget)
        rate = rate or excess / (0.1 * problem.step.baseline_seconds + 1e-30)
        found = _best(evictor, rate, options)
        if not found:
            break
        chosen = _compatible(evictor, found, options.batch)
        rate = chosen[0].score
        following = draft.with_inserted((e.position, e.cone) for e in chosen)
        left = _excess(following, budget)
        if len(chosen) > 1 and left > excess * (1 - 1e-9):
            following = draft.with_inserted([(chosen[0].position, chosen[0].cone)])
            left = _excess(following, budget)
        if left >= excess * (1 - 1e-6):
            break
        draft, excess = following, left
    return draft


def _excess(draft: Draft, budget: float) -> float:
    return float(np.maximum(draft.live - budget, 0.0).sum())


def _best(evictor: Evictor, rate: float, options: Options) -> list[Eviction]:
    storage, start, stop, bound = (a.tolist() for a in evictor.candidates())
    found: list[Eviction] = []
    best = 0.0
    for k in range(len(storage)):
        if (k >= options.tried and best > 0.0) or bound[k] < best * 0.5:
            break
        for factor in (1.0, 0.1):
            eviction = evictor.evaluate(storage[k], start[k], stop[k], rate * factor)
            if eviction is not None and eviction.gain > 0.0:
                if options.noise is not None:
                    eviction.gain *= options.noise(storage[k])
                found.append(eviction)
                best = max(best, eviction.score)
    found.sort(key=lambda e: -e.score)
    return found


def _compatible(
    evictor: Evictor, found: list[Eviction], batch: float
) -> list[Eviction]:
    """The best eviction and those nearly as good that do not touch each other."""
    chosen = [found[0]]
    evictor.take(found[0])
    positions, freed = {found[0].position}, set(found[0].frees)
    needed = set(found[0].needs)
    for e in found[1:]:
        if e.score < batch * found[0].score:
            break
        if e.position in positions or freed.intersection(e.needs):
            continue
        if freed.intersection(e.frees) or needed.intersection(e.frees):
            continue
        live = evictor.live
        low = min((c.start for c in e.changes), default=e.position)
        after = live[low : e.position].copy()
        for a, b, nbytes in e.changes:
            after[a - low : b - low] += nbytes
        gain = float(
            np.maximum(live[low : e.position] - evictor.budget, 0.0).sum()
            - np.maximum(after - evictor.budget, 0.0).sum()
        )
        if gain - e.inserted < batch * found[0].score * e.seconds:
            continue
        evictor.take(e)
        chosen.append(e)
        positions.add(e.position)
        freed.update(e.frees)
        needed.update(e.needs)
    return chosen
