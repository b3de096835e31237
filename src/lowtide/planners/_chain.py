"""The chain of a step: where its forward can be cut, and what each segment takes.

A cut is a place between two forward ops. What crosses it (made before, still read after
in the forward) is what must be kept to run the rest again without the part before: one
storage in a plain chain, a residual stream with a mask in a transformer, all open skips
in a U-Net. Narrow places are taken as cuts; a segment is what lies between two of them.

Bytes of segments are those of the step, not of layer outputs. For every pair of cuts
the tables below hold the peak of running the segment forward, of running it again while
gradients are held, and of its backward with the gradients of parameters growing. They
are sums over lifetimes in the baseline order, taken for all pairs at once: one row per
cut, O(cuts * ops) in all. They describe whole segments, run again before their backward
begins; `from_kept` pulls ops later than that, so plans are still simulated one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lowtide.step.graph import StepGraph
from lowtide.step.schedule import missing_cone, must_keep

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]

_NEVER = -1


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When each storage of the forward is made and read, in the baseline order.

    Forward positions count ops before the turn; backward times count ops from the turn
    on. `pinned` storages stay whatever is planned: outputs of the step, and what cannot
    be made again. `loose` are all others made in the forward.
    """

    step: StepGraph
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    born: dict[int, int]
    last_forward: dict[int, int]
    first_backward: dict[int, int]
    last_backward: dict[int, int]
    pinned: frozenset[int]
    loose: tuple[int, ...]

    @classmethod
    def of(cls, step: StepGraph) -> Lifetimes:
        """Walk the baseline once. A step without a turn has no backward."""
        order = step.baseline
        turn = order.index(step.turn) if step.turn >= 0 else len(order)
        forward, backward = order[:turn], order[turn:]
        born: dict[int, int] = {}
        last_forward: dict[int, int] = {}
        for position, number in enumerate(forward):
            for s in step.ops[number].reads:
                last_forward[s] = position
            for s in step.ops[number].writes:
                if not step.storages[s].resident:
                    born.setdefault(s, position)
        if backward:
            for s in step.ops[backward[0]].reads:
                last_forward[s] = turn
        first_backward: dict[int, int] = {}
        last_backward: dict[int, int] = {}
        for time, number in enumerate(backward[1:], 1):
            for s in step.ops[number].reads:
                if s in born:
                    first_backward.setdefault(s, time)
                    last_backward[s] = time
        pinned = must_keep(step).union(step.outputs).intersection(born)
        loose = tuple(s for s in born if s not in pinned)
        return cls(
            step,
            forward,
            backward,
            born,
            last_forward,
            first_backward,
            last_backward,
            pinned,
            loose,
        )

    def crossings(self) -> list[frozenset[int]]:
        """For each place 0 .. number of forward ops, the loose storages that cross."""
        opened: list[list[int]] = [[] for _ in range(len(self.forward) + 1)]
        closed: list[list[int]] = [[] for _ in range(len(self.forward) + 2)]
        for s in self.loose:
            if self.last_forward.get(s, _NEVER) > self.born[s]:
                opened[self.born[s] + 1].append(s)
                closed[self.last_forward[s] + 1].append(s)
        now: frozenset[int] = frozenset()
        found: list[frozenset[int]] = []
        for place in range(len(self.forward) + 1):
            if opened[place] or closed[place]:
                now = now.difference(closed[place]).union(opened[place])
            found.append(now)
        return found


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


def chain_of(step: StepGraph, *, max_cuts: int) -> Chain:
    """The chain of a step with at most about `max_cuts` cuts, the narrowest ones."""
    lifetimes = Lifetimes.of(step)
    crossings = lifetimes.crossings()
    places = _narrow(lifetimes, crossings, max_cuts)
    return _Tables(lifetimes, places, [crossings[p] for p in places]).chain()


def _widths(lifetimes: Lifetimes, crossings: Sequence[frozenset[int]]) -> Bytes:
    """Bytes that cross each place."""
    sizes = lifetimes.step.sizes
    change = np.zeros(len(crossings) + 1, np.int64)
    for s in lifetimes.loose:
        if lifetimes.last_forward.get(s, _NEVER) > lifetimes.born[s]:
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
        if s in lifetimes.last_backward and lifetimes.last_forward.get(s, _NEVER) >= 0:
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


class _Tables:
    """Sums over lifetimes, one row per cut."""

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
                and life.last_backward.get(s, _NEVER) >= self.times[j]
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
            stop = max(life.last_forward.get(s, _NEVER), life.born[s]) + 1
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


def backward_bytes(life: Lifetimes) -> tuple[Bytes, Bytes, Bytes]:
    """Bytes held at each backward time whatever is kept: during the op, before it, and
    of these the ones that are no passing gradients.

    Residents, pinned storages, and all that the backward itself makes.
    """
    step, sizes = life.step, life.step.sizes
    end = len(life.backward)
    outputs = frozenset(step.outputs)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    scratch = np.zeros(end + 1, np.int64)
    for time, number in enumerate(life.backward):
        op = step.ops[number]
        scratch[time] = op.scratch_bytes
        for s in op.reads:
            if s in first:
                last[s] = time
        for s in op.writes:
            if not step.storages[s].resident and s not in life.born:
                first.setdefault(s, time)
                last[s] = time
    held = np.zeros(end + 2, np.int64)
    lasting = np.zeros(end + 2, np.int64)
    for s, time in first.items():
        held[time] += sizes[s]
        held[end if s in outputs else last[s] + 1] -= sizes[s]
        if s in outputs:
            lasting[time] += sizes[s]
    for s in life.pinned:
        stop = end if s in outputs else life.last_backward.get(s, 0) + 1
        for change in (held, lasting):
            change[0] += sizes[s]
            change[stop] -= sizes[s]
    during = np.cumsum(held)[:-1] + step.resident_bytes
    lasting = np.cumsum(lasting)[:-1] + step.resident_bytes
    first_of = np.array([step.resident_bytes], np.int64)
    return (
        during + scratch,
        np.concatenate([first_of, during[:-1]]),
        np.concatenate([first_of, lasting[:-1]]),
    )


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
