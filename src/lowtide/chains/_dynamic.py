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

"quadratic" evaluates it as written, O(n^2), for any U. "linear" needs a U that does not
fall when a run grows at either end. Candidates j wait in a queue by index, M falling:
a new one with no larger M removes those in front of it, and the last one, b, is removed
for good once U(i, b) >= M(c) for the one before it, c, since then c is no worse now and
for every i still to come. What is left at the back is the minimiser. Every index enters
and leaves once: O(n), range maximum included (it is a second queue of that kind).

When it loses: sizes alone know nothing of what backward really saves, of values that
skip ahead, or of scratch bytes: pass a measured `segment_peak`. It never trades time
for memory, and recomputes a layer once at most; see `rotor`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Literal, Protocol, TypeAlias, TypeVar

from lowtide.chains._sizes import (
    ChainSolution,
    Number,
    checked_kept,
    exact_sizes,
    plain_numbers,
)

_Value = TypeVar("_Value", int, float)


class NumberTable(Protocol):
    """Rows of numbers: nested lists, or a NumPy array."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sequence[Number]: ...


SegmentPeak: TypeAlias = Callable[[int, int], Number] | NumberTable
"""`U(i, j)`, or a table with `table[i][j]` (a NumPy array will do), for i < j.

`math.inf` marks a run that may not be used; entries with j <= i are never read.
"""


def dynamic_peak(
    sizes: Iterable[Number],
    kept: Iterable[int],
    *,
    segment_peak: SegmentPeak | None = None,
) -> Number:
    """Return the peak of keeping `kept` when kept values die during backward. O(n).

    Raises:
        ValueError: `sizes` is not a chain, or `kept` misses one of its ends.

    >>> dynamic_peak([1, 5, 2, 5, 1], [0, 2, 4])  # 1 + 2 + (5 + 1) + 5
    14
    """
    if segment_peak is not None:
        values = _checked_numbers(sizes)
        indices = checked_kept(kept, len(values))
        rows = _Rows(segment_peak, len(values))
        peak = values[-1]
        for left, right in reversed(tuple(pairwise(indices))):
            peak = values[left] + max(peak, rows.entry(left, right))
        return peak
    exact = exact_sizes(sizes)
    values_exact = exact.values
    indices = checked_kept(kept, len(values_exact))
    peak_exact = values_exact[-1]
    for left, right in reversed(tuple(pairwise(indices))):
        segment = sum(values_exact[left + 1 : right + 1]) + max(
            values_exact[left:right]
        )
        peak_exact = values_exact[left] + max(peak_exact, segment)
    return exact.to_number(peak_exact)


def optimal_dynamic(
    sizes: Iterable[Number],
    *,
    segment_peak: SegmentPeak | None = None,
    method: Literal["auto", "linear", "quadratic"] = "auto",
) -> ChainSolution:
    """Return a kept set of least dynamic peak.

    Args:
        sizes: the values of the chain, input first, output last.
        segment_peak: `U(i, j)` as a function or a table, e.g. measured on a real step;
            by default the segment peak of plain sizes described in this module.
        method: "linear" is O(n) and, with a `segment_peak`, right only if that never
            falls when a run grows; "quadratic" is right for any. "auto" takes the first
            on plain sizes and the second with a `segment_peak`.

    Raises:
        ValueError: bad sizes or table, or every kept set uses a forbidden run.

    >>> optimal_dynamic([1] * 11)
    ChainSolution(kept=(0, 4, 7, 9, 10), peak=6)
    >>> optimal_dynamic([1, 1, 1], segment_peak=lambda i, j: 10 * (j - i))
    ChainSolution(kept=(0, 1, 2), peak=12)
    """
    if method not in ("auto", "linear", "quadratic"):
        raise ValueError(
            f"method is {method!r}, and optimal_dynamic knows 'auto', 'linear' and "
            f"'quadratic'. Pass one of these."
        )
    if segment_peak is None:
        exact = exact_sizes(sizes)
        if method == "quadratic":
            rows = (_size_row(exact.values, i) for i in _backwards(exact.values))
            peak, following = _solve_quadratic(exact.values, rows)
        else:
            peak, following = _solve_linear(exact.values)
        return ChainSolution(_path(following), exact.to_number(peak))
    numbers = _checked_numbers(sizes)
    table = _Rows(segment_peak, len(numbers))
    if method == "linear":
        peak, following = _solve_linear_for(numbers, table.entry)
    else:
        rows = (table.row(i) for i in _backwards(numbers))
        peak, following = _solve_quadratic(numbers, rows)
    if peak == float("inf"):
        raise ValueError(
            f"segment_peak is infinite on some run of every kept set of these "
            f"{len(numbers)} values. Allow at least one way from 0 to "
            f"{len(numbers) - 1}, for instance every run of length one."
        )
    return ChainSolution(_path(following), peak)


class _Rows:
    """One access to a segment peak given as a function, nested lists or an array."""

    def __init__(self, segment_peak: SegmentPeak, length: int) -> None:
        self._source = segment_peak
        self._length = length
        if not callable(segment_peak) and len(segment_peak) != length:
            raise ValueError(
                f"segment_peak has {len(segment_peak)} rows, and the chain has "
                f"{length} values. Pass a square table of that size, or a function."
            )

    def row(self, left: int) -> list[Number]:
        """Return U(left, j) for j = left + 1 .. n - 1, checked."""
        what = f"segment_peak[{left}][{left + 1}:]"
        if callable(self._source):
            entries = [self._source(left, j) for j in range(left + 1, self._length)]
        else:
            whole = self._source[left]
            if len(whole) != self._length:
                raise ValueError(
                    f"segment_peak[{left}] has {len(whole)} entries, and the chain has "
                    f"{self._length} values. Pass a square table of that size."
                )
            entries = whole[left + 1 :]
        return plain_numbers(entries, what=what, allow_infinity=True)

    def entry(self, left: int, right: int) -> Number:
        """Return U(left, right), checked."""
        source = self._source
        entry = source(left, right) if callable(source) else source[left][right]
        what = f"segment_peak[{left}][{right}:]"
        return plain_numbers([entry], what=what, allow_infinity=True)[0]


def _checked_numbers(sizes: Iterable[Number]) -> list[Number]:
    # A segment peak needs no subtraction, so numbers stay as given: adding and taking
    # maxima in one fixed order is monotone even in floats.
    numbers = plain_numbers(sizes, what="sizes")
    exact_sizes(numbers)
    return numbers


def _backwards(values: Sequence[Number]) -> range:
    return range(len(values) - 2, -1, -1)


def _size_row(values: Sequence[int], left: int) -> list[int]:
    sums = accumulate(values[left + 1 :])
    largest = accumulate(values[left:-1], max)
    return [total + gradient for total, gradient in zip(sums, largest, strict=True)]


def _solve_quadratic(
    values: Sequence[_Value], rows: Iterator[Sequence[_Value]]
) -> tuple[_Value, list[int]]:
    """Return M(0) and each index's successor, from rows of U, last row first."""
    length = len(values)
    least = list(values)
    following = [length] * length
    for left, row in zip(_backwards(values), rows, strict=True):
        peaks = list(map(max, least[left + 1 :], row))
        smallest = min(peaks)
        following[left] = left + 1 + peaks.index(smallest)
        least[left] = values[left] + smallest
    return least[0], following


def _solve_linear(values: Sequence[int]) -> tuple[int, list[int]]:
    """Return M(0) and successors for the segment peak of plain sizes. O(n).

    The loop of `_solve_linear_for` with U written out: a million calls cost too much.
    """
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


def _solve_linear_for(
    values: Sequence[Number], segment_peak: Callable[[int, int], Number]
) -> tuple[Number, list[int]]:
    """Return M(0) and successors for any segment peak that never falls. O(n) calls."""
    length = len(values)
    least = list(values)
    following = [length] * length
    queue: deque[int] = deque()
    for left in range(length - 2, -1, -1):
        while queue and least[queue[0]] >= least[left + 1]:
            queue.popleft()
        queue.appendleft(left + 1)
        segment = segment_peak(left, queue[-1])
        while len(queue) > 1 and segment >= least[queue[-2]]:
            queue.pop()
            segment = segment_peak(left, queue[-1])
        following[left] = queue[-1]
        least[left] = values[left] + max(least[queue[-1]], segment)
    return least[0], following


def _path(following: Sequence[int]) -> tuple[int, ...]:
    kept = [0]
    while kept[-1] < len(following) - 1:
        kept.append(following[kept[-1]])
    return tuple(kept)
