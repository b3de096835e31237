"""Least peak when everything kept stays to the end of the step (Chen's objective).

Problem: values d_0 .. d_{n-1} in a chain; keep a set C holding both ends, recompute
one run between neighbours of C at a time. The peak is

    sum of d_c over C  +  the largest sum strictly between two neighbours of C.

References: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear
memory cost", arXiv 1604.06174 (`sqrt_n`, `greedy`); D.-Y. Hong, T.-H.
Tsai, N. Wang, P. Liu, J.-J. Wu, "GPU memory usage optimization for backward propagation
in deep network training", arXiv 2502.12499, who ask for the exact optimum in O(n^3).

`optimal_static` bounds the largest gap by B. The least kept bytes f(B) of a path from
0 to n-1 with no gap above B come from one sweep: the predecessors allowed for j form a
window whose left end never moves back, so a sliding-window minimum takes O(n) in all.
The optimum is the least f(B) + (gap really used) over the O(n^2) gaps of the chain:
O(n^3) if every gap is tried. Most need not be, for f never rises with B: between two
bounds a < b already tried, nothing is below (next gap above a) + f(b). That takes some
tens of sweeps on the chains we measured, and degrades towards O(n^3) only where
f(B) + B is flat over very many gaps.

`sqrt_n` O(n), `greedy` O(n) per bound tried.

When it loses: kept values really die during backward, and gradients take bytes; see
`optimal_dynamic`. Sizes stand for layer outputs, not for what backward saves.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

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


def optimal_static(sizes: Iterable[Number]) -> ChainSolution:
    """Return a kept set of least static peak.

    >>> optimal_static([9, 1, 1, 1, 2, 1, 1, 1, 9])
    ChainSolution(kept=(0, 3, 5, 8), peak=22)
    """
    exact = exact_sizes(sizes)
    peak, kept = _solve(exact.values)
    return ChainSolution(kept, exact.to_number(peak))


def _peak(values: Sequence[int], kept: tuple[int, ...]) -> int:
    prefix = list(accumulate(values, initial=0))
    return sum(values[index] for index in kept) + _largest_gap(prefix, kept)


def _largest_gap(prefix: Sequence[int], kept: tuple[int, ...]) -> int:
    gaps = (prefix[right] - prefix[left + 1] for left, right in pairwise(kept))
    return max(gaps, default=0)


def _solve(values: Sequence[int]) -> tuple[int, tuple[int, ...]]:
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
