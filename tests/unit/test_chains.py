"""Kept-set solvers on chains against enumeration of every kept set."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest

from lowtide import chains

Chain = list[int] | list[float]


# The two objectives straight from their definitions, in exact arithmetic, sharing
# nothing with the package.
def define_static(sizes: Sequence[float], kept: Sequence[int]) -> Fraction:
    exact = [Fraction(size) for size in sizes]
    gaps = [sum(exact[a + 1 : b]) for a, b in pairwise(kept)]
    return Fraction(sum(exact[index] for index in kept) + max(gaps, default=0))


def define_segment(sizes: Sequence[float], left: int, right: int) -> Fraction:
    exact = [Fraction(size) for size in sizes]
    return Fraction(sum(exact[left + 1 : right + 1]) + max(exact[left:right]))


def define_dynamic(sizes: Sequence[float], kept: Sequence[int]) -> Fraction:
    # All kept values are held when backward starts, whatever the segments need.
    held = [Fraction(sizes[index]) for index in kept]
    moments = [sum(held)]
    for position, (left, right) in enumerate(pairwise(kept)):
        segment = define_segment(sizes, left, right)
        moments.append(sum(held[: position + 1]) + segment)
    return Fraction(max(moments))


def kept_sets(length: int) -> Iterator[tuple[int, ...]]:
    if length == 1:
        yield (0,)
        return
    for count in range(length - 1):
        for inner in combinations(range(1, length - 1), count):
            yield (0, *inner, length - 1)


def brute_force(objective: Callable[[tuple[int, ...]], Fraction], n: int) -> Fraction:
    return min(objective(kept) for kept in kept_sets(n))


KINDS: dict[str, Callable[[random.Random, int], Chain]] = {
    "uniform": lambda rng, n: [rng.randrange(1, 4)] * n,
    "small": lambda rng, n: [rng.randrange(1, 10) for _ in range(n)],
    "zeros": lambda rng, n: [rng.choice([0, 0, 1, 5]) for _ in range(n)],
    "skewed": lambda rng, n: [int(2 ** (rng.random() * 20)) for _ in range(n)],
    "falling": lambda rng, n: sorted((rng.randrange(99) for _ in range(n)), key=neg),
    "huge": lambda rng, n: [rng.randrange(2**80) for _ in range(n)],
    "floats": lambda rng, n: [rng.random() * 10 ** rng.randrange(9) for _ in range(n)],
    "extremes": lambda rng, n: [rng.choice([1e-300, 1e300, 1.5]) for _ in range(n)],
}


def neg(number: int) -> int:
    return -number


def random_chains(kind: str, count: int, longest: int = 9) -> Iterator[Chain]:
    rng = random.Random(f"chains {kind}")
    for _ in range(count):
        yield KINDS[kind](rng, rng.randrange(1, longest + 1))


def every_set_as_masks(
    sizes: Sequence[int],
) -> tuple[int, int]:
    """Return both optima of a longer chain by a fast enumeration over bit masks."""
    n = len(sizes)
    least_static = least_dynamic = math.inf
    for mask in range(1 << (n - 2)):
        kept_sum = sizes[0]
        between = widest = segment = peak = 0
        gradient = sizes[0]
        for k in range(1, n):
            segment += sizes[k]
            if k == n - 1 or mask >> (k - 1) & 1:
                widest = max(widest, between)
                peak = max(peak, kept_sum + segment + gradient)
                kept_sum += sizes[k]
                between = segment = gradient = 0
            else:
                between += sizes[k]
            gradient = max(gradient, sizes[k])
        least_static = min(least_static, kept_sum + widest)
        least_dynamic = min(least_dynamic, peak)
    return int(least_static), int(least_dynamic)


@pytest.mark.parametrize("kind", KINDS)
def test_static_optimum_is_that_of_all_kept_sets(kind: str) -> None:
    for sizes in random_chains(kind, 200):
        best = brute_force(lambda kept, s=sizes: define_static(s, kept), len(sizes))
        found = chains.optimal_static(sizes)
        assert found.peak == rounded(best, sizes), sizes
        assert chains.static_peak(sizes, found.kept) == found.peak, sizes


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_optimum_is_that_of_all_kept_sets(kind: str) -> None:
    for sizes in random_chains(kind, 200):
        best = brute_force(lambda kept, s=sizes: define_dynamic(s, kept), len(sizes))
        found = chains.optimal_dynamic(sizes)
        assert found.peak == rounded(best, sizes), sizes
        assert chains.dynamic_peak(sizes, found.kept) == found.peak, sizes


@pytest.mark.parametrize("kind", ["uniform", "small", "zeros", "skewed", "huge"])
def test_longer_chains_reach_both_optima(kind: str) -> None:
    rng = random.Random(f"longer {kind}")
    for _ in range(60):
        sizes = [int(size) for size in KINDS[kind](rng, rng.randrange(10, 13))]
        static, dynamic = every_set_as_masks(sizes)
        assert chains.optimal_static(sizes).peak == static, sizes
        assert chains.optimal_dynamic(sizes).peak == dynamic, sizes


def rounded(exact: Fraction, sizes: Chain) -> float:
    return int(exact) if all(type(size) is int for size in sizes) else float(exact)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluators_follow_their_definitions(kind: str) -> None:
    rng = random.Random(f"evaluate {kind}")
    for sizes in random_chains(kind, 150):
        kept = rng.choice(list(kept_sets(len(sizes))))
        static = rounded(define_static(sizes, kept), sizes)
        dynamic = rounded(define_dynamic(sizes, kept), sizes)
        assert chains.static_peak(sizes, kept) == static
        assert chains.dynamic_peak(sizes, set(kept)) == dynamic


def static_by_every_gap(sizes: Sequence[int]) -> int:
    """The static optimum in O(n^4): for each bound on the gap, a shortest path."""
    n = len(sizes)
    gaps = {sum(sizes[a + 1 : b]) for a in range(n) for b in range(a + 1, n)}
    before = [0]
    for size in sizes:
        before.append(before[-1] + size)
    best = math.inf
    for bound in gaps:
        least = [sizes[0]]
        for j in range(1, n):
            near = (i for i in range(j) if before[j] - before[i + 1] <= bound)
            least.append(sizes[j] + min(least[i] for i in near))
        best = min(best, least[-1] + bound)
    return int(best)


def dynamic_by_recurrence(sizes: Sequence[int]) -> int:
    """The dynamic optimum in O(n^2), from the recurrence as it is published."""
    least = [sizes[-1]]
    for i in range(len(sizes) - 2, -1, -1):
        choices, total, gradient = [], 0, 0
        for j in range(i + 1, len(sizes)):
            total, gradient = total + sizes[j], max(gradient, sizes[j - 1])
            choices.append(max(least[j - i - 1], total + gradient))
        least.insert(0, sizes[i] + min(choices))
    return least[0]


def test_long_chains_reach_the_optima_of_plain_recurrences() -> None:
    rng = random.Random("long")
    for spread in (1, 10, 1000, 10**9):
        for length in (20, 30, 150):
            sizes = [rng.randrange(spread) + 1 for _ in range(length)]
            dynamic = chains.optimal_dynamic(sizes)
            assert dynamic.peak == dynamic_by_recurrence(sizes)
            assert chains.dynamic_peak(sizes, dynamic.kept) == dynamic.peak
            if length < 150:
                static = chains.optimal_static(sizes)
                assert static.peak == static_by_every_gap(sizes)
                assert chains.static_peak(sizes, static.kept) == static.peak


def test_uniform_chain_has_the_known_shape() -> None:
    sizes = [1] * 1024
    # Static: k + 1 kept and runs of 1023 / k - 1 values: 64 at k = 32. Dynamic: the run
    # that starts at the t-th kept value may be one shorter than the run before it.
    assert chains.optimal_static(sizes).peak == 64
    assert chains.sqrt_n(sizes).peak == 64
    dynamic = chains.optimal_dynamic(sizes)
    assert dynamic.peak == 47
    assert abs(dynamic.peak - math.sqrt(2 * 1024)) < 3
    exact_fit = chains.optimal_dynamic([1] * 56)  # 1 + 2 + ... + 10 = 55 layers
    lengths = [right - left for left, right in pairwise(exact_fit.kept)]
    assert lengths == list(range(10, 0, -1))


def test_static_optimum_is_often_worse_under_the_dynamic_objective() -> None:
    rng = random.Random("compare")
    excess: list[float] = []
    for _ in range(400):
        sizes = [rng.randrange(1, 100) for _ in range(rng.randrange(6, 40))]
        kept = chains.optimal_static(sizes).kept
        best = chains.optimal_dynamic(sizes).peak
        excess.append(chains.dynamic_peak(sizes, kept) / best - 1)
    assert min(excess) >= 0
    assert sum(more > 0 for more in excess) > 200
    assert 0.03 < sum(excess) / 400 < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_heuristics_return_their_own_static_peak(kind: str) -> None:
    for sizes in random_chains(kind, 100, longest=40):
        best = chains.optimal_static(sizes).peak
        for found in (chains.sqrt_n(sizes), chains.greedy(sizes)):
            assert found.peak == chains.static_peak(sizes, found.kept)
            assert found.peak >= best


def test_greedy_follows_the_sizes_and_sqrt_n_does_not() -> None:
    # Feature maps that shrink: equal counts make the first run far too large.
    falling = [int(1e6 * 0.97**k) for k in range(200)]
    assert chains.greedy(falling).peak < 0.7 * chains.sqrt_n(falling).peak
    assert chains.greedy(falling).peak < 1.2 * chains.optimal_static(falling).peak
    # Uniform: 10 runs of 10, within the rounding of the bound.
    assert chains.greedy([1] * 101).peak <= 22


def test_greedy_gains_from_trying_more_bounds() -> None:
    rng = random.Random("greedy")
    gains = 0
    for _ in range(50):
        sizes = [rng.randrange(100) for _ in range(100)]
        one = chains.greedy(sizes, num_bounds=1).peak
        many = chains.greedy(sizes, num_bounds=61).peak  # the middle one is the same
        assert many <= one
        gains += many < one
    assert gains > 25


def test_the_dynamic_optimum_scales() -> None:
    rng = random.Random("scale")
    sizes = [rng.randrange(1, 10**6) for _ in range(100_000)]
    start = time.perf_counter()
    found = chains.optimal_dynamic(sizes)
    # Measured 0.07 s; a quadratic method would take many minutes.
    assert time.perf_counter() - start < 5
    assert chains.dynamic_peak(sizes, found.kept) == found.peak


def test_the_static_optimum_scales() -> None:
    rng = random.Random("scale")
    for sizes in (
        [rng.random() for _ in range(2000)],
        sorted(rng.sample(range(10**6), 2000)),
    ):
        start = time.process_time()
        found = chains.optimal_static(sizes)
        # Measured 0.3 s at most; trying every gap would take most of an hour.
        assert time.process_time() - start < 5
        assert chains.static_peak(sizes, found.kept) == found.peak


def test_numpy_sizes_are_plain_numbers() -> None:
    integers = chains.optimal_dynamic(np.array([1, 5, 2, 5, 1], np.int32))
    assert integers == chains.optimal_dynamic([1, 5, 2, 5, 1])
    assert type(integers.peak) is int
    floats = chains.optimal_static([np.float32(0.5), np.float64(2), 1])
    assert floats == chains.ChainSolution((0, 1, 2), 3.5)


@pytest.mark.parametrize(
    "solve",
    [
        chains.sqrt_n,
        chains.greedy,
        chains.optimal_static,
        chains.optimal_dynamic,
        lambda sizes: chains.static_peak(sizes, [0]),
        lambda sizes: chains.dynamic_peak(sizes, [0]),
    ],
)
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "sizes is empty"),
        ([1, -2, 3], r"sizes\[1\] is -2"),
        ([1.0, math.nan], r"sizes\[1\] is nan"),
        ([math.inf], r"sizes\[0\] is inf"),
        ([1, "2"], r"sizes\[1\] is '2'"),
        ([None], r"sizes\[0\] is None"),
    ],
)
def test_bad_sizes_are_refused(solve, sizes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(sizes)


@pytest.mark.parametrize("evaluate", [chains.static_peak, chains.dynamic_peak])
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([0, 1], "Add 2"),
        ([1, 2], "Add 0"),
        ([], "indices 0 to 2"),
        ([0, 2, 3], "indices 0 to 2"),
        ([-1, 0, 2], "indices 0 to 2"),
        ([0, 1.5, 2], "no index"),
    ],
)
def test_bad_kept_sets_are_refused(evaluate, kept, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate([1, 2, 3], kept)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="num_bounds is 0"):
        chains.greedy([1], num_bounds=0)
