"""Where a step can be cut.

A cut is a place between two forward ops. What crosses it (made before, still read after
in the forward) is what must be kept to run the rest again without the part before: one
storage in a plain chain, a residual stream with a mask in a transformer, all open skips
in a U-Net. Narrow places are taken as cuts; a segment is what lies between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lowtide.planners._chain.chain import Chain
from lowtide.planners._chain.lifetimes import NEVER, Bytes, Lifetimes
from lowtide.planners._chain.tables import Tables
from lowtide.step.graph import StepGraph


def chain_of(step: StepGraph, *, max_cuts: int) -> Chain:
    """The chain of a step with at most about `max_cuts` cuts, the narrowest ones."""
    lifetimes = Lifetimes.of(step)
    crossings = lifetimes.crossings()
    places = _narrow(lifetimes, crossings, max_cuts)
    return Tables(lifetimes, places, [crossings[p] for p in places]).chain()


def _widths(lifetimes: Lifetimes, crossings: Sequence[frozenset[int]]) -> Bytes:
    """Bytes that cross each place."""
    sizes = lifetimes.step.sizes
    change = np.zeros(len(crossings) + 1, np.int64)
    for s in lifetimes.loose:
        if lifetimes.last_forward.get(s, NEVER) > lifetimes.born[s]:
            change[lifetimes.born[s] + 1] += sizes[s]
            change[lifetimes.last_forward[s] + 1] -= sizes[s]
    return np.cumsum(change)[:-1]


def _narrow(
    lifetimes: Lifetimes, crossings: Sequence[frozenset[int]], max_cuts: int
) -> tuple[int, ...]:
    """Places that no other near them beats; near grows until few enough are left.

    Of two equally wide, that with more bytes the backward reads anyway is better: they
    need not be made again, and hold the place of others while they live.
    """
    sizes = lifetimes.step.sizes
    last = len(crossings) - 1
    merit = _widths(lifetimes, crossings).astype(float)
    useful = np.zeros(len(crossings) + 1)
    for s in lifetimes.loose:
        if s in lifetimes.last_backward and lifetimes.last_forward.get(s, NEVER) >= 0:
            useful[lifetimes.born[s] + 1] += sizes[s]
            useful[lifetimes.last_forward[s] + 1] -= sizes[s]
    merit -= 0.1 * np.cumsum(useful)[:-1]
    radius = 0
    while True:
        inner = _least_within(merit[1:last], radius) + 1
        if len(inner) <= max(0, max_cuts - 2):
            return tuple(dict.fromkeys((0, *inner.tolist(), last)))
        radius = max(radius + 1, radius * 5 // 4)


def _least_within(merit: NDArray[np.float64], radius: int) -> NDArray[np.int64]:
    """Places with no smaller one within the radius; of equal ones, spread evenly."""
    least = merit.copy()
    for shift in range(1, radius + 1):
        np.minimum(least[shift:], merit[:-shift], out=least[shift:])
        np.minimum(least[:-shift], merit[shift:], out=least[:-shift])
    chosen: list[int] = []
    for place in np.flatnonzero(merit <= least).tolist():
        if not chosen or place - chosen[-1] > radius:
            chosen.append(place)
    return np.array(chosen, np.int64)
