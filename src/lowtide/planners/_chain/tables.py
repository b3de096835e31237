"""The tables of a chain: sums over lifetimes, one row per cut.

Bytes of segments are those of the step, not of layer outputs. For every pair of cuts
the tables hold the peak of running the segment forward, of running it again while
gradients are held, and of its backward with the gradients of parameters growing. They
are taken for all pairs at once, in the baseline order: O(cuts * ops) in all. They
describe whole segments, run again before their backward begins; `from_kept` pulls ops
later than that, so plans are still simulated one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

from lowtide.planners._lifetimes import (
    Bytes,
    Lifetimes,
    Seconds,
    backward_bytes,
    bytes_over_time,
)
from lowtide.step.remake import missing_cone

TABLES = (
    "cut_bytes saved_bytes again_peak saved_peak backward_peak pass_bytes fill_bytes "
    "seconds"
).split()


class Segments:
    """What is summed up for the segments between some cuts."""

    def __init__(
        self,
        life: Lifetimes,
        places: tuple[int, ...],
        crossing: tuple[frozenset[int], ...],
    ) -> None:
        self.life, self.places, self.crossing = life, places, crossing
        self.step, self.sizes = life.step, life.step.sizes
        self.num_forward = len(life.forward)
        # The backward time at which what lies before each cut is first needed.
        end = max(1, len(life.backward))
        needed = [s for s in life.loose if s in life.first_backward]
        behind = ([s for s in needed if life.last_forward[s] < p] for p in places[:-1])
        times = [min((life.first_backward[s] for s in b), default=end) for b in behind]
        self.times = (*times, 0)
        # By place: bytes made before it that the backward reads.
        end = self.num_forward + 1
        saved = [s for s in life.loose if s in life.last_backward]
        spans = ((life.born[s] + 1, end, self.sizes[s]) for s in saved)
        self.saved_before = bytes_over_time(end, spans)
        self.rerun = self._rerun_seconds()
        self.readers: dict[int, list[int]] = {}
        for position, number in enumerate(life.forward):
            if self.rerun[position] > 0:
                for s in self.step.ops[number].reads:
                    self.readers.setdefault(s, []).append(position)
        self.needless = [self._needless(crosses) for crosses in crossing]

    def tables(self) -> dict[str, Any]:
        count = len(self.places)
        tables = {name: np.zeros((count, count), np.int64) for name in TABLES[:-1]}
        self._fill_bytes(tables["cut_bytes"], tables["saved_bytes"])
        self._fill_peaks(tables)
        return {**tables, "seconds": self._seconds()}

    def _cuts_before(self, position: int) -> int:
        """How many cuts lie before what the op at a forward position makes."""
        return bisect_left(self.places, position + 1)

    def _fill_bytes(self, cut_bytes: Bytes, saved_bytes: Bytes) -> None:
        total = self.saved_before[list(self.places)]
        for j, crosses in enumerate(self.crossing):
            for s in crosses:
                # New at j for every cut i before which s was not made.
                before = self._cuts_before(self.life.born[s])
                cut_bytes[:before, j] += self.sizes[s]
                if s not in self.life.last_backward:
                    saved_bytes[:before, j] += self.sizes[s]
            saved_bytes[:, j] += total[j] - total

    def _fill_peaks(self, tables: dict[str, Bytes]) -> None:
        during, before, _ = backward_bytes(self.life)
        passing, filling, pinned = self._forward_bytes()
        waiting = self._waiting(len(during))
        entering = before[np.minimum(self.times, len(before) - 1)]
        stops, held = self._refill_ends()
        for i, place in enumerate(self.places[:-1]):
            later = slice(i + 1, None)
            ends = np.array(self.places[later]) - place - 1
            until = np.maximum(stops[later] - place - 1, 0)
            pass_i = passing[place:].copy()
            fill_i = filling[place:] - self.saved_before[place]
            for s in self.crossing[i]:
                stop = self.life.last_forward[s] + 1 - place
                pass_i[:stop] -= self.sizes[s]
                if s not in self.life.last_backward:
                    fill_i[:stop] -= self.sizes[s]
            refill = np.maximum.accumulate(fill_i)
            backward = self._backward_peaks(i, during + waiting[i])
            again = np.maximum.accumulate(pass_i + pinned[place:])[ends]
            again = np.maximum(again, refill[until] + entering[later] + held[later])
            saved = np.maximum.accumulate(fill_i + pinned[place:])[ends]
            for name, row in {
                "pass_bytes": np.maximum.accumulate(pass_i)[ends],
                "fill_bytes": refill[ends],
                "backward_peak": backward,
                "again_peak": np.maximum(again, backward),
                "saved_peak": np.maximum(saved, backward),
            }.items():
                tables[name][i, later] = row

    def _refill_ends(self) -> tuple[Bytes, Bytes]:
        """For each cut, where running up to it again may stop, and what it holds then.

        Ops at the end that only make what crosses the cut do not run again, while what
        they made is there from the start if the backward still reads it.
        """
        life = self.life
        stops = np.array(self.places, np.int64)
        held = np.zeros(len(self.places), np.int64)
        for j, stop in enumerate(self.places):
            while stop > 1 and (
                stop - 1 in self.needless[j] or self.rerun[stop - 1] <= 0
            ):
                stop -= 1
            stops[j] = stop
            held[j] = sum(
                self.sizes[s]
                for s in self.crossing[j]
                if life.born[s] >= stop
                and life.last_backward.get(s, -1) >= self.times[j]
            )
        return stops, held

    def _backward_peaks(self, i: int, held: Bytes) -> Bytes:
        """The peak of the backward from cut i to every later cut."""
        stop = self.times[i]
        ahead = np.maximum.accumulate(held[:stop][::-1])[::-1]
        starts = np.array(self.times[i + 1 :])
        peaks = np.zeros(len(starts), np.int64)
        inside = starts < stop
        peaks[inside] = ahead[starts[inside]]
        return peaks

    def _forward_bytes(self) -> tuple[Bytes, Bytes, Bytes]:
        """While each forward op runs: bytes that pass, that fill up, and that stay."""
        life, count = self.life, self.num_forward
        scratch = [self.step.passing_bytes[number] for number in life.forward]
        passing, filling = [], []
        for s in life.loose:
            span = life.born[s], life.last_forward[s] + 1, self.sizes[s]
            passing.append(span)
            saved = (life.born[s], count, self.sizes[s])
            filling.append(saved if s in life.last_backward else span)
        pinned = [(life.born[s], count, self.sizes[s]) for s in life.pinned]
        return (
            bytes_over_time(count, passing) + np.array(scratch, np.int64),
            bytes_over_time(count, filling) + np.array(scratch, np.int64),
            bytes_over_time(count, pinned) + self.step.resident_bytes,
        )

    def _waiting(self, num_times: int) -> Bytes:
        """[i, t]: bytes made behind cut i that the backward reads at t or later."""
        life = self.life
        made = np.zeros((len(self.places) + 1, num_times + 1), np.int64)
        for s in life.loose:
            if s in life.last_backward:
                row = self._cuts_before(life.born[s]) - 1
                made[row, life.last_backward[s]] += self.sizes[s]
        by_time = np.cumsum(made[:, ::-1], axis=1)[:, ::-1]
        return np.cumsum(by_time[::-1], axis=0)[::-1][:, :num_times]

    def _seconds(self) -> Seconds:
        """Seconds to run each segment again, but for what its end makes needless."""
        total = np.concatenate([[0.0], np.cumsum(self.rerun)])[list(self.places)]
        table = np.maximum(total[None, :] - total[:, None], 0.0)
        for j, needless in enumerate(self.needless):
            for position in needless:
                table[: self._cuts_before(position), j] -= self.rerun[position]
        return np.maximum(table, 0.0)

    def _rerun_seconds(self) -> Seconds:
        """For each forward position, the seconds of making its results again.

        Zero where the backward never needs them again.
        """
        step, life = self.step, self.life
        alive = life.pinned.union(step.resident)
        needed = set(missing_cone(step, life.first_backward, alive))
        rerun = np.zeros(self.num_forward)
        for position, number in enumerate(life.forward):
            for s in step.ops[number].writes:
                if step.remakers[s] in needed:
                    needed.remove(step.remakers[s])
                    rerun[position] += step.ops[step.remakers[s]].seconds
        return rerun

    def _needless(self, crosses: frozenset[int]) -> set[int]:
        """Positions that need not run again once these storages are kept."""
        life = self.life
        needless: set[int] = set()

        def is_needless(s: int) -> bool:
            return s in crosses or (
                s not in life.last_backward
                and needless.issuperset(self.readers.get(s, ()))
            )

        stack = sorted({life.born[s] for s in crosses})
        while stack:
            position = stack.pop()
            if position in needless or self.rerun[position] <= 0:
                continue
            op = self.step.ops[life.forward[position]]
            if all(map(is_needless, op.writes)):
                needless.add(position)
                stack.extend(life.born[s] for s in op.reads if s in life.born)
        return needless
