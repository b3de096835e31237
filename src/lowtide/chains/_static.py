"""Least peak when everything kept stays to the end of the step (Chen's objective).

Problem: values d_0 .. d_{n-1} in a chain; keep a set C holding both ends, recompute
one run between neighbours of C at a time. The peak is

    sum of d_c over C  +  the largest sum strictly between two neighbours of C.

References: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear
memory cost", arXiv 1604.06174 (`sqrt_n`, `greedy`, `recursive`); D.-Y. Hong, T.-H.
Tsai, N. Wang, P. Liu, J.-J. Wu, "GPU memory usage optimization for backward propagation
in deep network training", arXiv 2502.12499, who ask for the exact optimum in O(n^3).

`optimal_static` bounds the largest gap by B. The least kept bytes f(B) of a path from
0 to n-1 with no gap above B come from one sweep: the predecessors allowed for j form a
window whose left end never moves back, so a sliding-window minimum takes O(n) in all.
The optimum is the least f(B) + (gap really used) over the O(n^2) gaps of the chain:
O(n^3) when every gap is tried ("cubic"). "pruned" uses that f never rises with B:
between two bounds a < b already tried, nothing is below (next gap above a) + f(b).
Both are exact; "pruned" takes some tens of sweeps on the chains we measured, and
degrades towards "cubic" only where f(B) + B is flat over very many gaps.

`sqrt_n` O(n), `greedy` O(n) per bound tried, `recursive` O(n).

When it loses: kept values really die during backward, and gradients take bytes; see
`optimal_dynamic`. Sizes stand for layer outputs, not for what backward saves.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from lowtide.chains._sizes import ChainSolution, Number, checked_kept, exact_sizes


def static_peak(sizes: Iterable[Number], kept: Iterable[int]) -> Number:
    """Return the kept sum plus the largest sum between neighbours of `kept`. O(n).

    Raises:
        ValueError: `sizes` is not a chain, or `kept` misses one of its ends.

    >>> static_peak([1, 5, 2, 5, 1], [0, 2, 4])
    9
    """
    exact = exact_sizes(sizes)
    indices = checked_kept(kept, len(exact.values))
    return exact.to_number(_peak(exact.values, indices))


def sqrt_n(sizes: Iterable[Number]) -> ChainSolution:
    """Return the static peak of cutting the chain in about sqrt(n) equal runs. O(n).

    Runs are equal in number of values, as published: sizes do not move the cuts.

    >>> sqrt_n([1] * 10)
    ChainSolution(kept=(0, 3, 6, 9), peak=6)
    """
    exact = exact_sizes(sizes)
    last = len(exact.values) - 1
    num_runs = max(1, round(math.sqrt(last)))
    kept = tuple(sorted({run * last // num_runs for run in range(num_runs + 1)}))
    return ChainSolution(kept, exact.to_number(_peak(exact.values, kept)))


def greedy(sizes: Iterable[Number], *, num_bounds: int = 6) -> ChainSolution:
    """Return Chen's greedy plan with the best static peak over several run bounds.

    A sweep keeps a value as soon as the bytes since the last kept one pass a bound. The
    bounds tried lie within a factor sqrt(2) of sqrt(x * y), where x is the kept sum and
    y the largest run (its kept end included) of a first sweep. That one's own bound is
    the same formula where everything is kept. O(n) per bound.

    >>> greedy([4, 1, 1, 1, 1, 4, 1, 1, 1, 1])
    ChainSolution(kept=(0, 5, 9), peak=13)
    """
    if num_bounds < 1:
        raise ValueError(
            f"num_bounds is {num_bounds}, and at least one bound must be tried. "
            f"Pass 1 or more."
        )
    exact = exact_sizes(sizes)
    values = exact.values
    first = _greedy_kept(values, math.isqrt(sum(values) * max(values)))
    prefix = list(accumulate(values, initial=0))
    runs = (prefix[right + 1] - prefix[left + 1] for left, right in pairwise(first))
    centre = math.isqrt(sum(values[k] for k in first) * max(runs, default=0))
    candidates = [(_peak(values, first), first)]
    for step in range(num_bounds):
        exponent = step / (num_bounds - 1) - 0.5 if num_bounds > 1 else 0.0
        # The factor as a fixed-point integer: sizes may exceed what a float holds.
        bound = centre * round(2**exponent * 2**20) >> 20
        kept = _greedy_kept(values, bound)
        candidates.append((_peak(values, kept), kept))
    peak, kept = min(candidates)
    return ChainSolution(kept, exact.to_number(peak))


def _greedy_kept(values: Sequence[int], bound: int) -> tuple[int, ...]:
    kept = [0]
    since_kept = 0
    for index in range(1, len(values) - 1):
        since_kept += values[index]
        if since_kept > bound:
            kept.append(index)
            since_kept = 0
    if len(values) > 1:
        kept.append(len(values) - 1)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class RecursiveSolution:
    """Chen's recursive plan: values kept at several depths, not one kept set.

    `levels[k]` is the depth at which value k is held: 0 for the ends, 1 for what the
    first forward keeps, and so on; a run between neighbours of levels <= l is handled
    by rerunning it and keeping its values of level l + 1. `kept` lists levels 0 and 1.
    `num_forwards` counts layers run forward, reruns included.
    """

    kept: tuple[int, ...]
    peak: Number
    levels: tuple[int, ...]
    num_forwards: int


def recursive(sizes: Iterable[Number], *, num_parts: int = 2) -> RecursiveSolution:
    """Return the plan that splits every run again: O(log n) values, O(n log n) layers.

    Each run is cut in `num_parts` parts of equal length, and what is kept in a run
    stays until the run is done. O(n) time.

    >>> plan = recursive([1] * 9)
    >>> plan.kept, plan.peak, plan.levels, plan.num_forwards
    ((0, 4, 8), 5, (0, 3, 2, 3, 1, 3, 2, 3, 0), 18)
    """
    if num_parts < 2:
        raise ValueError(
            f"num_parts is {num_parts}, and a run can only be split in two or more. "
            f"Pass 2 or more."
        )
    exact = exact_sizes(sizes)
    values = exact.values
    last = len(values) - 1
    levels = [0] * len(values)
    peak = num_forwards = 0
    held_at_ends = values[0] + (values[last] if last else 0)
    runs = [(0, last, 0, held_at_ends)]
    while runs:
        left, right, level, held = runs.pop()
        # The last value of a rerun is still held, so only the whole chain computes it.
        num_forwards += right - left - (1 if level else 0)
        parts = min(num_parts, right - left)
        if parts < 2:
            peak = max(peak, held)
            continue
        cuts = [left + part * (right - left) // parts for part in range(parts + 1)]
        for cut in cuts[1:-1]:
            levels[cut] = level + 1
            held += values[cut]
        runs += [(start, stop, level + 1, held) for start, stop in pairwise(cuts)]
    kept = tuple(index for index, level in enumerate(levels) if level < 2)
    return RecursiveSolution(kept, exact.to_number(peak), tuple(levels), num_forwards)


def optimal_static(
    sizes: Iterable[Number], *, method: Literal["pruned", "cubic"] = "pruned"
) -> ChainSolution:
    """Return a kept set of least static peak.

    Args:
        sizes: the values of the chain, input first, output last.
        method: "pruned" (default) and "cubic" are both exact; the second tries every
            gap of the chain as a bound and is there to check and to compare.

    >>> optimal_static([9, 1, 1, 1, 2, 1, 1, 1, 9])
    ChainSolution(kept=(0, 3, 5, 8), peak=22)
    """
    exact = exact_sizes(sizes)
    if method == "pruned":
        peak, kept = _solve_pruned(exact.values)
    elif method == "cubic":
        peak, kept = _solve_cubic(exact.values)
    else:
        raise ValueError(
            f"method is {method!r}, and optimal_static knows 'pruned' and 'cubic'. "
            f"Pass one of these."
        )
    return ChainSolution(kept, exact.to_number(peak))


def _peak(values: Sequence[int], kept: tuple[int, ...]) -> int:
    prefix = list(accumulate(values, initial=0))
    return sum(values[index] for index in kept) + _largest_gap(prefix, kept)


def _largest_gap(prefix: Sequence[int], kept: tuple[int, ...]) -> int:
    gaps = (prefix[right] - prefix[left + 1] for left, right in pairwise(kept))
    return max(gaps, default=0)


def _solve_cubic(values: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    prefix = list(accumulate(values, initial=0))
    last = len(values) - 1
    bounds = {0}
    for left in range(last):
        start = prefix[left + 1]
        bounds.update(stop - start for stop in prefix[left + 2 : last + 1])
    return min(
        (kept_sum + gap, kept)
        for kept_sum, gap, kept in (_sweep(values, prefix, b) for b in sorted(bounds))
    )


def _solve_pruned(values: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    prefix = list(accumulate(values, initial=0))
    widest = prefix[len(values) - 1] - prefix[1] if len(values) > 1 else 0
    kept_sum, _, kept = _sweep(values, prefix, 0)
    best = (kept_sum, kept)
    kept_sum, gap, kept = _sweep(values, prefix, max(widest, 0))
    best = min(best, (kept_sum + gap, kept))
    # Each entry: (least peak possible inside, next gap above the lower bound, upper
    # bound, kept sum at the upper bound). The least promising are never opened.
    brackets: list[tuple[int, int, int, int]] = []

    def add_bracket(above: int, below: int, kept_sum_below: int) -> None:
        start = _next_gap(prefix, above, len(values) - 1)
        if start is not None and start < below:
            heapq.heappush(
                brackets, (start + kept_sum_below, start, below, kept_sum_below)
            )

    add_bracket(0, gap, kept_sum)
    while brackets:
        least, start, below, kept_sum_below = heapq.heappop(brackets)
        if least >= best[0]:
            break
        # A bound b inside costs at least b + kept_sum_below: larger ones cannot win.
        stop = min(below - 1, best[0] - kept_sum_below - 1)
        bound = (start + stop) // 2
        kept_sum, gap, kept = _sweep(values, prefix, bound)
        best = min(best, (kept_sum + gap, kept))
        # f is constant from the gap really used up to the bound.
        if gap > start:
            heapq.heappush(brackets, (start + kept_sum, start, gap, kept_sum))
        add_bracket(bound, below, kept_sum_below)
    return best


def _sweep(
    values: Sequence[int], prefix: Sequence[int], bound: int
) -> tuple[int, int, tuple[int, ...]]:
    """Return least kept sum, gap used and kept set with no gap above `bound`. O(n)."""
    length = len(values)
    kept_sum = [values[0]] * length
    previous = [0] * length
    # Candidates in order of index, with kept_sum rising: the first is the minimum.
    window: list[int] = []
    head = 0
    for index in range(1, length):
        newest = kept_sum[index - 1]
        while len(window) > head and kept_sum[window[-1]] >= newest:
            window.pop()
        window.append(index - 1)
        reach = prefix[index] - bound
        while prefix[window[head] + 1] < reach:
            head += 1
        chosen = window[head]
        previous[index] = chosen
        kept_sum[index] = kept_sum[chosen] + values[index]
    kept = [length - 1]
    while kept[-1]:
        kept.append(previous[kept[-1]])
    path = tuple(reversed(kept))
    return kept_sum[-1], _largest_gap(prefix, path), path


def _next_gap(prefix: Sequence[int], above: int, last: int) -> int | None:
    """Return the smallest gap of the chain larger than `above`. O(n log n)."""
    smallest: int | None = None
    for left in range(last):
        start = prefix[left + 1]
        right = bisect_right(prefix, start + above, left + 1, last + 1)
        if right > last:
            break  # the gaps that start further right are smaller still
        gap = prefix[right] - start
        if smallest is None or gap < smallest:
            smallest = gap
    return smallest
