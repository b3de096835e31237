"""The chain of a step: the cuts of its forward, and what each segment takes.

A cut is a place between two forward ops. What crosses it (made before, still read after
in the forward) is what must be kept to run the rest again without the part before: one
storage in a plain chain, a residual stream with a mask in a transformer, all open skips
in a U-Net. Narrow places are taken as cuts; a segment is what lies between two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lowtide.planners._chain.tables import TABLES, Segments
from lowtide.planners._lifetimes import Bytes, Lifetimes, Seconds, bytes_over_time
from lowtide.step.graph import StepGraph


@dataclass(frozen=True, slots=True)
class Chain:
    """A step as a chain of segments; entry [i, j] of a table is that from i to j.

    `places[i]` forward ops run before cut i; the first cut is the start of the forward
    and the last its end. `crossing[i]` is what crosses cut i. With K bytes kept at the
    cuts up to i and between them, a segment that is run again takes at most
    K + again_peak, keeps `cut_bytes` more and costs `seconds`; one that is saved takes
    K + saved_peak and keeps `saved_bytes` more. Both peaks include residents, and
    `backward_peak`, that of the backward alone. `pass_bytes` and `fill_bytes` are the
    most a forward holds beyond K, residents and pinned storages, without and with
    saving what the backward reads.
    """

    lifetimes: Lifetimes
    places: tuple[int, ...]
    crossing: tuple[frozenset[int], ...]
    times: tuple[int, ...]
    cut_bytes: Bytes
    saved_bytes: Bytes
    again_peak: Bytes
    saved_peak: Bytes
    backward_peak: Bytes
    pass_bytes: Bytes
    fill_bytes: Bytes
    seconds: Seconds

    @property
    def step(self) -> StepGraph:
        return self.lifetimes.step

    def __len__(self) -> int:
        return len(self.places)

    def at(self, cuts: Sequence[int]) -> Chain:
        """The chain of only these cuts, which hold the first and the last."""
        return replace(
            self,
            places=tuple(self.places[c] for c in cuts),
            crossing=tuple(self.crossing[c] for c in cuts),
            times=tuple(self.times[c] for c in cuts),
            **{name: getattr(self, name)[np.ix_(cuts, cuts)] for name in TABLES},
        )

    def kept(self, cuts: Iterable[int], saved: Iterable[tuple[int, int]]) -> set[int]:
        """The storages to keep for these cuts and these saved segments."""
        kept = set[int]().union(*(self.crossing[cut] for cut in cuts))
        inside = np.zeros(len(self.lifetimes.forward) + 1, bool)
        for i, j in saved:
            inside[self.places[i] : self.places[j]] = True
        born = self.lifetimes.born
        kept.update(s for s in self.lifetimes.last_backward if inside[born[s]])
        return kept


def chain_of(step: StepGraph, *, max_cuts: int) -> Chain:
    """The chain of a step with at most about `max_cuts` cuts, the narrowest ones."""
    life = Lifetimes(step)
    places = _narrow(life, max_cuts)
    born, last = life.born, life.last_forward
    crossing = tuple(
        frozenset(s for s in life.loose if born[s] < place <= last[s])
        for place in places
    )
    segments = Segments(life, places, crossing)
    return Chain(life, places, crossing, segments.times, **segments.tables())


def _narrow(life: Lifetimes, max_cuts: int) -> tuple[int, ...]:
    """Places that no other near them beats; near grows until few enough are left.

    Of two equally wide, that with more bytes the backward reads anyway is better: they
    need not be made again, and hold the place of others while they live.
    """
    last = len(life.forward)
    spans = {
        s: (life.born[s] + 1, life.last_forward[s] + 1, life.step.sizes[s])
        for s in life.loose
    }
    wide = bytes_over_time(last + 1, spans.values())
    read = [span for s, span in spans.items() if s in life.last_backward]
    merit = wide - 0.1 * bytes_over_time(last + 1, read)
    radius = 0
    while True:
        inner = _least_within(merit[1:last], radius)
        if len(inner) <= max(0, max_cuts - 2):
            return tuple(dict.fromkeys((0, *(place + 1 for place in inner), last)))
        radius = max(radius + 1, radius * 5 // 4)


def _least_within(merit: NDArray[np.float64], radius: int) -> list[int]:
    """Places with no smaller one within the radius; of equal ones, spread evenly."""
    least = merit.copy()
    for shift in range(1, radius + 1):
        np.minimum(least[shift:], merit[:-shift], out=least[shift:])
        np.minimum(least[:-shift], merit[shift:], out=least[:-shift])
    chosen: list[int] = []
    for place in np.flatnonzero(merit <= least).tolist():
        if not chosen or place - chosen[-1] > radius:
            chosen.append(place)
    return chosen
