"""The chain of a step: the cuts of its forward, and what each segment takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowtide.planners._chain.lifetimes import Bytes, Lifetimes, Seconds
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

    step: StepGraph
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
    lifetimes: Lifetimes

    def __len__(self) -> int:
        return len(self.places)

    def at(self, cuts: Sequence[int]) -> Chain:
        """The chain of only these cuts, which hold the first and the last."""
        rows = np.ix_(cuts, cuts)
        return replace(
            self,
            places=tuple(self.places[c] for c in cuts),
            crossing=tuple(self.crossing[c] for c in cuts),
            times=tuple(self.times[c] for c in cuts),
            cut_bytes=self.cut_bytes[rows],
            saved_bytes=self.saved_bytes[rows],
            again_peak=self.again_peak[rows],
            saved_peak=self.saved_peak[rows],
            backward_peak=self.backward_peak[rows],
            pass_bytes=self.pass_bytes[rows],
            fill_bytes=self.fill_bytes[rows],
            seconds=self.seconds[rows],
        )

    def kept(self, cuts: Iterable[int], saved: Iterable[tuple[int, int]]) -> set[int]:
        """The storages to keep for these cuts and these saved segments."""
        kept: set[int] = set()
        for cut in cuts:
            kept |= self.crossing[cut]
        spans = [(self.places[i], self.places[j]) for i, j in saved]
        if spans:
            inside = np.zeros(len(self.lifetimes.forward) + 1, bool)
            for start, stop in spans:
                inside[start:stop] = True
            born = self.lifetimes.born
            kept.update(s for s in self.lifetimes.last_backward if inside[born[s]])
        return kept
