"""Least time under a memory limit, with three kinds of forward (rotor).

Problem: a chain of stages and a limit in bytes. Find the fastest sequence of forwards
(saving nothing, the input, or all that backward needs in one of several ways) and
backwards whose peak stays within the limit. A stage may be run forward many times.

Reference: O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
checkpointing for heterogeneous chains: how to train deep neural networks with limited
memory", arXiv 1911.13214; options per stage as in Rockmate. With value i held by the
caller and the gradient of value t + 1 counted in m, the time of stages i .. t is

    T(m, i, t) = min of
      over j:        f_i + ... + f_{j-1} + T(m - a_j, j, t) + T(m, i, j - 1)
      over options:  f_i + b_i + T(m - saved_i, i + 1, t)

where a choice exists only if each of its own steps fits in m. It is optimal among the
sequences that hold what they keep until its backward; others can be faster.

Bytes become slots. If all sizes share a divisor so large that the limit has at most
`slots` of it, nothing is rounded and the answer is exact. Otherwise sizes are rounded
up in the table, and the table only ranks choices: the least bytes each subchain needs
are known exactly from a second recurrence without slots, and the sequence is read off
with the exact bytes left at every choice. So it never exceeds the limit, and is found
whenever there is one. Rounding can only cost time.

Complexity: O(slots n^3) time, vectorised over slots and j, and 4 slots n^2 bytes.

When it loses: residual blocks must be whole stages; long skips do not fit a chain at
all; values cannot be dropped and made again between two uses; n^2 tables are large for
thousands of stages (group them).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from lowtide.chains._stages import (
    Backward,
    Forward,
    RotorStep,
    Stage,
    checked_bytes,
    simulate_rotor,
)
from lowtide.errors import BudgetTooSmallError

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RotorSolution:
    """A sequence within the limit, its time, and its exact peak."""

    seconds: float
    sequence: tuple[RotorStep, ...]
    peak_bytes: int


def rotor(
    stages: Sequence[Stage], memory: int, *, slots: int = 500, input_bytes: int = 0
) -> RotorSolution:
    """Return the fastest sequence for `stages` that stays within `memory` bytes.

    Args:
        stages: the chain, in forward order, usually with the loss as its last stage.
        memory: the limit in bytes, on everything `simulate_rotor` counts.
        slots: how finely the limit is divided; time and table grow with it.
        input_bytes: size of the chain's input, held until the last backward.

    Raises:
        BudgetTooSmallError: no sequence fits; `floor_bytes` is the least that does.
        ValueError: no stages, or a quantity that is negative or undefined.

    >>> stage = Stage(1.0, 2.0, output_bytes=4, saved_bytes=10)
    >>> rotor([stage, stage], 24).sequence
    (Forward(stage=0, keep='all', option=0), Forward(stage=1, keep='all', option=0), \
Backward(stage=1), Backward(stage=0))
    >>> tight = rotor([stage, stage], 18)
    >>> tight.seconds, tight.peak_bytes, tight.sequence[0]
    (7.0, 18, Forward(stage=0, keep='input', option=0))
    """
    memory = checked_bytes(memory, "memory")
    if slots < 1:
        raise ValueError(f"slots is {slots}, and must be 1 or more. Try 500.")
    chain = _Chain(stages, input_bytes)
    fastest = _fastest(chain)
    if fastest.peak_bytes <= memory:
        return fastest
    floor = _floor_table(chain)
    left = memory - chain.value_bytes[0]
    if left < floor[0, -1]:
        raise _too_small(chain, floor, memory)
    unit, is_exact = _slot_bytes(chain, left, slots)
    # A table that reaches beyond the limit ranks choices that rounding puts there.
    num_slots = left // unit + (0 if is_exact else left // unit // 8)
    table = _time_table(chain, num_slots, unit)
    extras = (0,) if is_exact else range(0, num_slots // 9 + 1, max(1, num_slots // 72))
    solutions = (
        _solution(chain, _read_off(chain, floor, left, _Ranking(table, unit, extra)))
        for extra in extras
    )
    return min(solutions, key=lambda solution: (solution.seconds, solution.peak_bytes))


def rotor_floor(stages: Sequence[Stage], *, input_bytes: int = 0) -> int:
    """Return the least `memory` for which `rotor` has a sequence, exactly. O(n^3).

    >>> stage = Stage(1.0, 2.0, output_bytes=4, saved_bytes=10)
    >>> rotor_floor([stage, stage])
    18
    """
    chain = _Chain(stages, input_bytes)
    return int(_floor_table(chain)[0, -1]) + chain.value_bytes[0]


class _Chain:
    """The stages as arrays. Index i of bytes is value i; of stages, stage i.

    `passing[i, j]`: bytes, above gradients, to run stages i .. j - 1 keeping value i
    (which the caller counts) and then only the newest value.
    """

    def __init__(self, stages: Sequence[Stage], input_bytes: int) -> None:
        if not stages:
            raise ValueError(
                "stages is empty, and there is nothing to run. Pass at least one Stage."
            )
        input_bytes = checked_bytes(input_bytes, "input_bytes")
        self.stages = tuple(stages)
        self.ways = tuple(stage.ways for stage in stages)
        self.value_bytes = [input_bytes, *(stage.output_bytes for stage in stages)]
        self.gradient_bytes = [0, *(stage.output_gradient_bytes for stage in stages)]
        seconds = accumulate((s.forward_seconds for s in stages), initial=0.0)
        self.elapsed = np.array(list(seconds))
        # Sums of any of these sizes must fit in 64 bits.
        total = sum(self.value_bytes) + sum(self.all_bytes())
        if total >= 2**60:
            raise ValueError(
                f"the sizes of the stages sum to {total} bytes, an exbibyte or more. "
                f"Check the units: every size is in bytes."
            )
        self.passing = np.zeros((len(stages), len(stages) + 1), np.int64)
        made = np.array([s.output_bytes + s.forward_scratch_bytes for s in stages])
        alone = made + self.value_bytes[:-1]
        for first in range(len(stages)):
            needs = [made[first], *alone[first + 1 :]]
            self.passing[first, first + 1 :] = np.maximum.accumulate(needs)

    def all_bytes(self) -> list[int]:
        """Return every size of the chain but those of its values."""
        sizes = [*self.gradient_bytes]
        sizes += (stage.forward_scratch_bytes for stage in self.stages)
        for way in (way for ways in self.ways for way in ways):
            scratch = way.forward_scratch_bytes, way.backward_scratch_bytes
            sizes += (way.saved_bytes, *scratch)
        return sizes

    def way_bytes(self, first: int, last: int) -> list[int]:
        """Return what each way of saving stage `first` needs for its own two steps."""
        before, after = self.gradient_bytes[last + 1], self.gradient_bytes[first + 1]
        needs: list[int] = []
        for way in self.ways[first]:
            forward = before + way.forward_scratch_bytes
            backward = after + way.backward_scratch_bytes
            needs.append(way.saved_bytes + max(forward, backward))
        return needs


def _fastest(chain: _Chain) -> RotorSolution:
    """Return the sequence that saves every stage in its fastest way."""
    sequence: list[RotorStep] = []
    for stage, ways in enumerate(chain.ways):
        costs = [(w.forward_seconds + w.backward_seconds, w.saved_bytes) for w in ways]
        sequence.append(Forward(stage, "all", costs.index(min(costs))))
    sequence += map(Backward, reversed(range(len(chain.ways))))
    return _solution(chain, sequence)


def _solution(chain: _Chain, sequence: Sequence[RotorStep]) -> RotorSolution:
    found = simulate_rotor(chain.stages, sequence, input_bytes=chain.value_bytes[0])
    return RotorSolution(found.seconds, tuple(sequence), found.peak_bytes)


def _choices(chain: _Chain, floor: Bytes, first: int, last: int) -> Bytes:
    """Return the least bytes of every choice for stages `first` .. `last`.

    First the splits at first + 1 .. last, then the ways of saving stage `first`.
    `floor` must be known for every shorter subchain.
    """
    ways = chain.way_bytes(first, last)
    if first < last:
        ways = [
            max(need, way.saved_bytes + int(floor[first + 1, last]))
            for need, way in zip(ways, chain.ways[first], strict=True)
        ]
    splits = chain.passing[first, first + 1 : last + 1] + chain.gradient_bytes[last + 1]
    held = np.array(chain.value_bytes[first + 1 : last + 1], np.int64)
    np.maximum(splits, held + floor[first + 1 : last + 1, last], out=splits)
    np.maximum(splits, floor[first, first:last], out=splits)
    return np.concatenate([splits, np.array(ways, np.int64)])


def _floor_table(chain: _Chain) -> Bytes:
    """Return the least bytes, input not counted, for every subchain first .. last."""
    length = len(chain.stages)
    floor = np.zeros((length, length), np.int64)
    for last in range(length):
        for first in range(last, -1, -1):
            floor[first, last] = _choices(chain, floor, first, last).min()
    return floor


def _slot_bytes(chain: _Chain, left: int, slots: int) -> tuple[int, bool]:
    """Return the bytes of one slot, and whether it divides every size."""
    divisor = math.gcd(*chain.value_bytes[1:], *chain.all_bytes())
    coarse = max(1, -(-left // slots))
    if divisor == 0 or divisor >= coarse:
        return max(divisor, coarse), True
    return coarse, False


def _time_table(chain: _Chain, num_slots: int, unit: int) -> Seconds:
    """Return T[first, last, m] for m = 0 .. `num_slots`; only first <= last is set."""
    length = len(chain.stages)
    width = num_slots + 1
    # Not filled: pages below the diagonal are never touched, so never allocated.
    table = np.empty((length, length, width))
    held_slots = [-(-size // unit) for size in chain.value_bytes]
    # For one `last`: T(m - a_j, j, last) + elapsed_j by j, ready to be added up.
    shifted = np.empty((length, width))
    sums = np.empty((length, width))
    slots = np.arange(width)
    for last in range(length):
        for first in range(last, -1, -1):
            best = table[first, last]
            best.fill(np.inf)
            if first < last:
                rows = sums[: last - first]
                np.add(
                    table[first, first:last], shifted[first + 1 : last + 1], out=rows
                )
                passing = chain.passing[first, first + 1 : last + 1]
                needed = -(-(passing + chain.gradient_bytes[last + 1]) // unit)
                rows[slots < needed[:, None]] = np.inf
                np.min(rows, axis=0, out=best)
                best -= chain.elapsed[first]
            needs = chain.way_bytes(first, last)
            for way, need in zip(chain.ways[first], needs, strict=True):
                start, held = -(-need // unit), -(-way.saved_bytes // unit)
                if start < width:
                    seconds = way.forward_seconds + way.backward_seconds
                    if first < last:
                        rest = table[first + 1, last, start - held : width - held]
                        seconds = rest + seconds
                    np.minimum(best[start:], seconds, out=best[start:])
            held = min(held_slots[first], width)
            shifted[first, :held] = np.inf
            shifted[first, held:] = best[: width - held] + chain.elapsed[first]
    return table


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Times looked up `extra` slots above what is left, to make up for rounding."""

    table: Seconds
    unit: int
    extra: int

    def slot(self, left: Bytes | int) -> Bytes:
        # Choices that do not fit are ruled out by the caller: any slot will do.
        slot = np.maximum(left, 0) // self.unit + self.extra
        return np.minimum(slot, self.table.shape[2] - 1)

    def seconds(self, chain: _Chain, first: int, last: int, left: int) -> Seconds:
        """Return the time of every choice, in the order of `_choices`."""
        splits = np.arange(first + 1, last + 1)
        held = np.array(chain.value_bytes[first + 1 : last + 1], np.int64)
        seconds = chain.elapsed[splits] - chain.elapsed[first]
        seconds += self.table[splits, last, self.slot(left - held)]
        seconds += self.table[first, splits - 1, self.slot(left)]
        ways = [way.forward_seconds + way.backward_seconds for way in chain.ways[first]]
        if first < last:
            saved = np.array([way.saved_bytes for way in chain.ways[first]], np.int64)
            ways = self.table[first + 1, last, self.slot(left - saved)] + ways
        return np.concatenate([seconds, ways])


def _read_off(
    chain: _Chain, floor: Bytes, left: int, ranking: _Ranking | None
) -> list[RotorStep]:
    """Return a sequence within `left` bytes, taking the best ranked choice that fits.

    Choices are tested against the exact `floor`, so one always fits if the first does.
    """
    sequence: list[RotorStep] = []
    pending: list[tuple[int, int, int] | Backward] = [
        (0, len(chain.stages) - 1, int(left))
    ]
    while pending:
        task = pending.pop()
        if isinstance(task, Backward):
            sequence.append(task)
            continue
        first, last, left = task
        needs = _choices(chain, floor, first, last)
        choice = int(needs.argmin())
        if ranking is not None:
            seconds = ranking.seconds(chain, first, last, left)
            seconds[needs > left] = np.inf
            if np.isfinite(seconds).any():
                choice = int(seconds.argmin())
        if choice >= last - first:
            option = choice - (last - first)
            sequence.append(Forward(first, "all", option))
            pending.append(Backward(first))
            if first < last:
                saved = chain.ways[first][option].saved_bytes
                pending.append((first + 1, last, left - saved))
            continue
        split = first + 1 + choice
        sequence.append(Forward(first, "input"))
        sequence += [Forward(stage, "nothing") for stage in range(first + 1, split)]
        pending.append((first, split - 1, left))
        pending.append((split, last, left - chain.value_bytes[split]))
    return sequence


def _too_small(chain: _Chain, floor: Bytes, memory: int) -> BudgetTooSmallError:
    least = int(floor[0, -1])
    sequence = _read_off(chain, floor, least, None)
    found = simulate_rotor(chain.stages, sequence, input_bytes=chain.value_bytes[0])
    worst = sequence[found.live_bytes.index(found.peak_bytes)]
    kind = "backward" if isinstance(worst, Backward) else "forward"
    return BudgetTooSmallError(
        memory, least + chain.value_bytes[0], f"the {kind} of stage {worst.stage}"
    )
