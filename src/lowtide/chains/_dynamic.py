"""Least peak when kept values die during backward (the objective of PyTorch).

Problem: backward handles the last run first, with everything kept still held, and drops
a kept value once the run that starts there is done. With C = (c_0 < ... < c_k),

    peak = max over t of  d_{c_0} + ... + d_{c_t} + U(c_t, c_{t+1}),

where U(i, j), the segment peak, is what it takes beyond the values kept up to i to
recompute i+1 .. j and run their backward. On plain sizes U is the sum of d over
i+1 .. j plus one output gradient, as large as the largest of d_i .. d_{j-1}.

Reference: D.-Y. Hong, T.-H. Tsai, N. Wang, P. Liu, J.-J. Wu, "GPU memory usage
optimization for backward propagation in deep network training", arXiv 2502.12499. The
recurrence is

    M(n-1) = d_{n-1},   M(i) = d_i + min over j > i of max(M(j), U(i, j)),

and M(0) the optimum: split C at its first index j after i; all that belongs to the rest
also carries d_i, while the run (i, j) comes last and carries nothing but d_i.

Evaluating that as written takes O(n^2). This U does not fall when a run grows at either
end, which allows O(n): candidates j wait in a queue by index, M falling. A new one with
no larger M removes those in front of it, and the last one, b, is removed for good once
U(i, b) >= M(c) for the one before it, c, since then c is no worse now and for every i
still to come. What is left at the back is the minimiser. Every index enters and leaves
once, the range maximum included (it is a second queue of that kind).

When it loses: sizes alone know nothing of what backward really saves, of values that
skip ahead, or of scratch bytes. It never trades time for memory, and recomputes a layer
once at most; see `rotor`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from lowtide.chains._sizes import ChainSolution, Number, checked_kept, exact_sizes


def dynamic_peak(sizes: Iterable[Number], kept: Iterable[int]) -> Number:
    """Return the peak of keeping `kept` when kept values die during backward. O(n).

    Raises:
        ValueError: `sizes` is not a chain, or `kept` misses one of its ends.

    >>> dynamic_peak([1, 5, 2, 5, 1], [0, 2, 4])  # 1 + 2 + (5 + 1) + 5
    14
    """
    exact = exact_sizes(sizes)
    values = exact.values
    indices = checked_kept(kept, len(values))
    peak = values[-1]
    for left, right in reversed(tuple(pairwise(indices))):
        segment = sum(values[left + 1 : right + 1]) + max(values[left:right])
        peak = values[left] + max(peak, segment)
    return exact.to_number(peak)


def optimal_dynamic(sizes: Iterable[Number]) -> ChainSolution:
    """Return a kept set of least dynamic peak. O(n).

    Raises:
        ValueError: `sizes` is not a chain.

    >>> optimal_dynamic([1] * 11)
    ChainSolution(kept=(0, 4, 7, 9, 10), peak=6)
    """
    exact = exact_sizes(sizes)
    peak, following = _solve(exact.values)
    kept = [0]
    while kept[-1] < len(following) - 1:
        kept.append(following[kept[-1]])
    return ChainSolution(tuple(kept), exact.to_number(peak))


def _solve(values: Sequence[int]) -> tuple[int, list[int]]:
    """Return M(0) and the successor of each index. O(n)."""
    length = len(values)
    prefix = list(accumulate(values, initial=0))
    least = list(values)
    following = [length] * length
    queue: deque[int] = deque()
    # Indices whose values rise to the back, all inside [left, last - 1]: the ends of
    # that interval only ever move left, so its maximum is always the one at the back.
    maxima: deque[int] = deque()
    for left in range(length - 2, -1, -1):
        newest = least[left + 1]
        while queue and least[queue[0]] >= newest:
            queue.popleft()
        queue.appendleft(left + 1)
        value = values[left]
        while maxima and values[maxima[0]] <= value:
            maxima.popleft()
        maxima.appendleft(left)
        start = prefix[left + 1]
        while True:
            last = queue[-1]
            while maxima[-1] >= last:
                maxima.pop()
            segment = prefix[last + 1] - start + values[maxima[-1]]
            if len(queue) == 1 or segment < least[queue[-2]]:
                break
            queue.pop()
        following[left] = last
        rest = least[last]
        least[left] = value + (segment if segment > rest else rest)
    return least[0], following
