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

import numpy as np
from numpy.typing import NDArray

from lowtide.planners._chain.chain import Chain
from lowtide.planners._chain.lifetimes import (
    NEVER,
    Bytes,
    Lifetimes,
    Seconds,
    backward_bytes,
)
from lowtide.step.remake import missing_cone


class Tables:
    """The tables of one chain under construction."""

    def __init__(
        self,
        lifetimes: Lifetimes,
        places: tuple[int, ...],
        crossing: list[frozenset[int]],
    ) -> None:
        self.life = lifetimes
        self.step = lifetimes.step
        self.sizes = lifetimes.step.sizes
        self.num_forward = len(lifetimes.forward)
        self.places = places
        self.times = self._times(places, crossing)
        self.crossing = crossing
        self.scratch = np.array(
            [self.step.ops[n].scratch_bytes for n in lifetimes.forward], np.int64
        )
        saved = np.zeros(self.num_forward + 1, np.int64)
        for s in lifetimes.loose:
            if s in lifetimes.last_backward:
                saved[lifetimes.born[s] + 1] += self.sizes[s]
        # By place: bytes made before it that the backward reads.
        self.saved_before = np.cumsum(saved)
        self.rerun = _rerun_seconds(lifetimes)
        needed_by = _needed_by(lifetimes, self.rerun)
        self.needless = [
            _needless(lifetimes, self.rerun, needed_by, c) for c in crossing
        ]

    def _times(
        self, places: tuple[int, ...], crossing: list[frozenset[int]]
    ) -> tuple[int, ...]:
        """The backward time at which what lies before each cut is first needed."""
        life = self.life
        end = max(1, len(life.backward))
        births = sorted(
            (life.born[s], s) for s in life.loose if s in life.first_backward
        )
        least, cursor = end, 0
        times: list[int] = []
        waiting: list[int] = []
        for place, crosses in zip(places, crossing, strict=True):
            while cursor < len(births) and births[cursor][0] < place:
                waiting.append(births[cursor][1])
                cursor += 1
            behind = [life.first_backward[s] for s in waiting if s not in crosses]
            least = min([least, *behind])
            waiting = [s for s in waiting if s in crosses]
            times.append(least)
        return (*times[:-1], 0)

    def chain(self) -> Chain:
        """All tables."""
        tables = {
            name: np.zeros((len(self.places), len(self.places)), np.int64)
            for name in (
                "cut_bytes saved_bytes again_peak saved_peak backward_peak "
                "pass_bytes fill_bytes"
            ).split()
        }
        self._fill_bytes(tables["cut_bytes"], tables["saved_bytes"])
        self._fill_peaks(tables)
        return Chain(
            step=self.step,
            places=self.places,
            crossing=tuple(self.crossing),
            times=self.times,
            seconds=self._seconds(),
            lifetimes=self.life,
            **tables,
        )

    def _fill_bytes(self, cut_bytes: Bytes, saved_bytes: Bytes) -> None:
        life, sizes = self.life, self.sizes
        total = self.saved_before[list(self.places)]
        for j, crosses in enumerate(self.crossing):
            for s in crosses:
                # New at j for every cut i before which s was not made.
                before = bisect_left(self.places, life.born[s] + 1)
                cut_bytes[:before, j] += sizes[s]
                if s not in life.last_backward:
                    saved_bytes[:before, j] += sizes[s]
            saved_bytes[:, j] += total[j] - total

    def _fill_peaks(self, tables: dict[str, Bytes]) -> None:
        during, before, _ = backward_bytes(self.life)
        passing, filling, pinned = self._forward_bytes()
        pinned += self.step.resident_bytes
        waiting = self._waiting(len(during))
        entering = before[np.minimum(self.times, len(before) - 1)]
        stops, held = self._refill_ends()
        for i, place in enumerate(self.places[:-1]):
            ends = np.array(self.places[i + 1 :]) - place - 1
            until = np.maximum(stops[i + 1 :] - place - 1, 0)
            pass_i = passing[place:].copy()
            fill_i = filling[place:] - self.saved_before[place]
            for s in self.crossing[i]:
                stop = self.life.last_forward[s] + 1 - place
                pass_i[:stop] -= self.sizes[s]
                if s not in self.life.last_backward:
                    fill_i[:stop] -= self.sizes[s]
            refill = np.maximum.accumulate(fill_i)
            tables["pass_bytes"][i, i + 1 :] = np.maximum.accumulate(pass_i)[ends]
            tables["fill_bytes"][i, i + 1 :] = refill[ends]
            backward = self._backward_peaks(i, during + waiting[i])
            tables["backward_peak"][i, i + 1 :] = backward
            again = np.maximum.accumulate(pass_i + pinned[place:])[ends]
            np.maximum(
                again, refill[until] + entering[i + 1 :] + held[i + 1 :], out=again
            )
            tables["again_peak"][i, i + 1 :] = np.maximum(again, backward)
            tables["saved_peak"][i, i + 1 :] = np.maximum(
                np.maximum.accumulate(fill_i + pinned[place:])[ends], backward
            )

    def _refill_ends(self) -> tuple[NDArray[np.int64], Bytes]:
        """For each cut, where running up to it again may stop, and what it holds then.

        Ops at the end that only make what crosses the cut do not run again, while what
        they made is there from the start if the backward still reads it.
        """
        life = self.life
        stops = np.array(self.places, np.int64)
        held = np.zeros(len(self.places), np.int64)
        for j, (place, crosses) in enumerate(
            zip(self.places, self.crossing, strict=True)
        ):
            stop = place
            while stop > 1 and (
                stop - 1 in self.needless[j] or self.rerun[stop - 1] <= 0
            ):
                stop -= 1
            stops[j] = stop
            held[j] = sum(
                self.sizes[s]
                for s in crosses
                if life.born[s] >= stop
                and life.last_backward.get(s, NEVER) >= self.times[j]
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
        """While each forward op runs: bytes that pass, that fill up, and pinned."""
        life, sizes = self.life, self.sizes
        passing = np.zeros(self.num_forward + 2, np.int64)
        filling = np.zeros_like(passing)
        pinned = np.zeros_like(passing)
        for s in life.born:
            if s in life.pinned:
                pinned[life.born[s]] += sizes[s]
                continue
            stop = max(life.last_forward.get(s, NEVER), life.born[s]) + 1
            passing[life.born[s]] += sizes[s]
            passing[stop] -= sizes[s]
            filling[life.born[s]] += sizes[s]
            if s not in life.last_backward:
                filling[stop] -= sizes[s]
        count = self.num_forward
        return (
            np.cumsum(passing)[:count] + self.scratch,
            np.cumsum(filling)[:count] + self.scratch,
            np.cumsum(pinned)[:count],
        )

    def _waiting(self, num_times: int) -> Bytes:
        """[i, t]: bytes made behind cut i that the backward reads at t or later."""
        life = self.life
        made = np.zeros((len(self.places) + 1, num_times + 1), np.int64)
        for s in life.loose:
            last = life.last_backward.get(s)
            if last is not None:
                row = bisect_left(self.places, life.born[s] + 1) - 1
                made[row, last] += self.sizes[s]
        by_time = np.cumsum(made[:, ::-1], axis=1)[:, ::-1]
        return np.cumsum(by_time[::-1], axis=0)[::-1][:, :num_times]

    def _seconds(self) -> Seconds:
        """Seconds to run each segment again, but for what its end makes needless."""
        rerun = self.rerun
        total = np.concatenate([[0.0], np.cumsum(rerun)])[list(self.places)]
        table = np.maximum(total[None, :] - total[:, None], 0.0)
        for j, needless in enumerate(self.needless):
            for position in needless:
                before = bisect_left(self.places, position + 1)
                table[:before, j] -= rerun[position]
        return np.maximum(table, 0.0)


def _rerun_seconds(life: Lifetimes) -> Seconds:
    """For each forward position, the seconds of making its results again.

    Zero where the backward never needs them again.
    """
    step = life.step
    alive = life.pinned.union(step.resident)
    needed = set(missing_cone(step, life.first_backward, alive))
    rerun = np.zeros(len(life.forward))
    counted: set[int] = set()
    for position, number in enumerate(life.forward):
        for s in step.ops[number].writes:
            again = step.remakers[s]
            if again in needed and again not in counted:
                counted.add(again)
                rerun[position] += step.ops[again].seconds
    return rerun


def _needed_by(life: Lifetimes, rerun: Seconds) -> dict[int, list[int]]:
    """For each storage, the forward positions that would read it when run again."""
    readers: dict[int, list[int]] = {}
    for position, number in enumerate(life.forward):
        if rerun[position] > 0:
            for s in life.step.ops[number].reads:
                readers.setdefault(s, []).append(position)
    return readers


def _needless(
    life: Lifetimes,
    rerun: Seconds,
    needed_by: dict[int, list[int]],
    crosses: frozenset[int],
) -> set[int]:
    """Positions that need not run again once these storages are kept."""
    step = life.step
    needless: set[int] = set()
    stack = sorted({life.born[s] for s in crosses})
    while stack:
        position = stack.pop()
        if position in needless or rerun[position] <= 0:
            continue
        op = step.ops[life.forward[position]]
        if all(
            s in crosses
            or (
                s not in life.last_backward
                and all(r in needless for r in needed_by.get(s, ()))
            )
            for s in op.writes
        ):
            needless.add(position)
            stack.extend(life.born[s] for s in op.reads if s in life.born)
    return needless
