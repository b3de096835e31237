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


def define_dynamic(
    sizes: Sequence[float],
    kept: Sequence[int],
    segment: Callable[[Sequence[float], int, int], Fraction] = define_segment,
) -> Fraction:
    # All kept values are held when backward starts, whatever the segments need.
    held = [Fraction(sizes[index]) for index in kept]
    moments = [sum(held)]
    for position, (left, right) in enumerate(pairwise(kept)):
        moments.append(sum(held[: position + 1]) + segment(sizes, left, right))
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
        for method in ("pruned", "cubic"):
            found = chains.optimal_static(sizes, method=method)
            assert found.peak == rounded(best, sizes), (sizes, method)
            assert chains.static_peak(sizes, found.kept) == found.peak, (sizes, method)


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_optimum_is_that_of_all_kept_sets(kind: str) -> None:
    for sizes in random_chains(kind, 200):
        best = brute_force(lambda kept, s=sizes: define_dynamic(s, kept), len(sizes))
        for method in ("linear", "quadratic"):
            found = chains.optimal_dynamic(sizes, method=method)
            assert found.peak == rounded(best, sizes), (sizes, method)
            assert chains.dynamic_peak(sizes, found.kept) == found.peak, (sizes, method)


@pytest.mark.parametrize("kind", ["uniform", "small", "zeros", "skewed", "huge"])
def test_longer_chains_reach_both_optima(kind: str) -> None:
    rng = random.Random(f"longer {kind}")
    for _ in range(60):
        sizes = [int(size) for size in KINDS[kind](rng, rng.randrange(10, 13))]
        static, dynamic = every_set_as_masks(sizes)
        assert chains.optimal_static(sizes).peak == static, sizes
        assert chains.optimal_static(sizes, method="cubic").peak == static, sizes
        assert chains.optimal_dynamic(sizes).peak == dynamic, sizes
        assert chains.optimal_dynamic(sizes, method="quadratic").peak == dynamic, sizes


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


def test_long_chains_agree_between_methods() -> None:
    rng = random.Random("long")
    for spread in (1, 10, 1000, 10**9):
        for length in (40, 75, 150):
            sizes = [rng.randrange(spread) + 1 for _ in range(length)]
            linear = chains.optimal_dynamic(sizes)
            quadratic = chains.optimal_dynamic(sizes, method="quadratic")
            assert linear.peak == quadratic.peak
            assert chains.dynamic_peak(sizes, linear.kept) == linear.peak
            if length < 150:
                pruned = chains.optimal_static(sizes)
                assert pruned.peak == chains.optimal_static(sizes, method="cubic").peak
                assert chains.static_peak(sizes, pruned.kept) == pruned.peak


# An incoming gradient of the size of the segment's output on top: this segment peak
# falls when a large output is followed by a small one.
def with_incoming(sizes: Sequence[float], left: int, right: int) -> Fraction:
    exact = [Fraction(size) for size in sizes]
    segment = exact[left + 1 : right + 1]
    return Fraction(sum(segment) + exact[right] + max(exact[left : right + 1]))


def test_any_segment_peak_is_solved_exactly_by_the_quadratic_method() -> None:
    rng = random.Random("incoming gradient")
    num_linear_misses = 0
    for _ in range(300):
        n = rng.randrange(2, 9)
        sizes = [rng.randrange(1, 20) for _ in range(n)]
        table = [[0] * n for _ in range(n)]
        for left in range(n):
            for right in range(left + 1, n):
                table[left][right] = int(with_incoming(sizes, left, right))
        best = brute_force(
            lambda kept, s=sizes: define_dynamic(s, kept, with_incoming), n
        )
        for form in (table, np.array(table), lambda i, j, t=table: t[i][j]):
            found = chains.optimal_dynamic(sizes, segment_peak=form)
            assert found.peak == best
            assert type(found.peak) is int
            assert chains.dynamic_peak(sizes, found.kept, segment_peak=form) == best
        linear = chains.optimal_dynamic(sizes, segment_peak=table, method="linear")
        num_linear_misses += linear.peak != best
    # The reason "auto" does not take the linear method with a segment peak.
    assert num_linear_misses > 30


def test_random_tables_with_forbidden_runs() -> None:
    rng = random.Random("tables")
    for _ in range(300):
        n = rng.randrange(2, 9)
        sizes = [rng.random() * 9 for _ in range(n)]
        table = [[rng.choice([math.inf, rng.random() * 30]) for _ in sizes]] * n
        for left in range(n - 1):
            table[left] = [*table[left]]
            table[left][left + 1] = rng.random() * 30
        found = chains.optimal_dynamic(sizes, segment_peak=table)
        peaks = {
            kept: chains.dynamic_peak(sizes, kept, segment_peak=table)
            for kept in kept_sets(n)
        }
        assert found.peak == peaks[found.kept] == min(peaks.values())


def test_linear_method_takes_a_monotone_segment_peak() -> None:
    rng = random.Random("monotone")
    for _ in range(200):
        n = rng.randrange(2, 30)
        sizes = [rng.randrange(20) for _ in range(n)]

        def segment(left: int, right: int, sizes: list[int] = sizes) -> int:
            return 3 * sum(sizes[left : right + 1]) + right - left

        linear = chains.optimal_dynamic(sizes, segment_peak=segment, method="linear")
        assert linear.peak == chains.optimal_dynamic(sizes, segment_peak=segment).peak
        kept = linear.kept
        assert chains.dynamic_peak(sizes, kept, segment_peak=segment) == linear.peak


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


def replay_recursion(
    sizes: Sequence[float], levels: Sequence[int]
) -> tuple[float, int]:
    """Run a recursive plan value by value; return its peak and its layers run."""
    held = {0}
    peak = sum(sizes[end] for end in {0, len(sizes) - 1})
    num_layers = 0
    backward_left = list(range(1, len(sizes)))

    def process(left: int, right: int, level: int) -> None:
        nonlocal num_layers, peak
        assert left in held
        inner = range(left + 1, right)
        kept = [k for k in inner if levels[k] == level]
        assert all(levels[k] > level for k in inner if k not in kept)
        if level == 1:
            num_layers += right - left
            held.add(right)
        elif inner:
            num_layers += len(inner)
        held.update(kept)
        peak = max(peak, sum(sizes[k] for k in held))
        for start, stop in reversed(list(pairwise([left, *kept, right]))):
            if stop - start == 1:
                assert {start, stop} <= held
                assert backward_left.pop() == stop
            else:
                process(start, stop, level + 1)
        held.difference_update(kept)

    if len(sizes) > 1:
        process(0, len(sizes) - 1, 1)
    assert not backward_left
    return peak, num_layers


def test_recursive_plan_runs_as_told() -> None:
    for parts in (2, 3, 5):
        for sizes in random_chains("small", 100, longest=60):
            plan = chains.recursive(sizes, num_parts=parts)
            assert replay_recursion(sizes, plan.levels) == (
                plan.peak,
                plan.num_forwards,
            )
            assert plan.kept == tuple(
                index for index, level in enumerate(plan.levels) if level <= 1
            )


def test_recursive_plan_holds_logarithmically_many_values() -> None:
    for power in range(1, 15):
        plan = chains.recursive([1] * (2**power + 1))
        # Both ends and one value per halving. A run of 2^p layers at depth one or more
        # reruns 2^p - 1 of them, so the total is 2^power (power - 1) + 2.
        assert plan.peak == power + 2
        assert plan.num_forwards == 2**power * (power - 1) + 2


def test_linear_method_scales() -> None:
    rng = random.Random("scale")
    sizes = [rng.randrange(1, 10**6) for _ in range(100_000)]
    start = time.perf_counter()
    found = chains.optimal_dynamic(sizes)
    # Measured 0.07 s; a quadratic method would take many minutes.
    assert time.perf_counter() - start < 5
    assert chains.dynamic_peak(sizes, found.kept) == found.peak


def test_pruned_method_scales() -> None:
    rng = random.Random("scale")
    for sizes in (
        [rng.random() for _ in range(2000)],
        sorted(rng.sample(range(10**6), 2000)),
    ):
        start = time.perf_counter()
        found = chains.optimal_static(sizes)
        # Measured 0.3 s at most; trying every gap would take most of an hour.
        assert time.perf_counter() - start < 5
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
        chains.recursive,
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
    with pytest.raises(ValueError, match="'cubic'"):
        chains.optimal_static([1], method="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'quadratic'"):
        chains.optimal_dynamic([1], method="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_bounds is 0"):
        chains.greedy([1], num_bounds=0)
    with pytest.raises(ValueError, match="num_parts is 1"):
        chains.recursive([1], num_parts=1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0, 1]], "1 rows"),
        ([[0], [0]], "1 entries"),
        ([[0, math.nan], [0, 0]], "is nan"),
        ([[0, -1], [0, 0]], "is -1"),
        ([[0, math.inf], [0, 0]], "infinite"),
    ],
)
def test_bad_segment_peaks_are_refused(table, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chains.optimal_dynamic([1, 2], segment_peak=table)
