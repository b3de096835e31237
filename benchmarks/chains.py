"""How the time of every chain solver grows with the length of the chain.

    python benchmarks/chains.py [--quick]

Prints a table; writes `results/chains.json` and `results/chains.png` next to this file.
All solvers use one thread. Times are processor seconds, which waiting for a core on a
busy machine does not lengthen, and the least of several runs is kept, since noise can
only add. Peak bytes are those of the process (its high-water mark at the end, imports
included).
"""

import argparse
import json
import math
import os
import platform
import random
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lowtide import chains

RESULTS = Path(__file__).parent / "results"
NUM_SLOTS = 500


@dataclass(frozen=True, slots=True)
class Series:
    """One solver: what to call for a length, its lengths, its expected growth."""

    name: str
    growth: str
    lengths: tuple[int, ...]
    prepare: Callable[[int], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Point:
    """The time of one solver on one length."""

    solver: str
    length: int
    seconds: float


def sizes_of(length: int) -> list[int]:
    """Return a chain of sizes spread over a factor of a thousand."""
    rng = random.Random(length)
    return [int(1e6 * 10 ** (3 * rng.random())) for _ in range(length)]


def stages_of(length: int) -> list[chains.Stage]:
    """Return a chain of unequal stages, sizes in no common unit."""
    rng = random.Random(length)
    stages: list[chains.Stage] = []
    for _ in range(length):
        output = rng.randrange(10**6, 10**8)
        stages.append(
            chains.Stage(
                forward_seconds=rng.random(),
                backward_seconds=2 * rng.random(),
                output_bytes=output,
                saved_bytes=output + rng.randrange(3 * 10**8),
                forward_scratch_bytes=rng.randrange(10**7),
                backward_scratch_bytes=rng.randrange(10**7),
            )
        )
    return stages


def on_sizes(
    solve: Callable[[list[int]], object],
) -> Callable[[int], Callable[[], object]]:
    """Return a preparation that makes the chain beforehand, so only solving counts."""

    def prepare(length: int) -> Callable[[], object]:
        sizes = sizes_of(length)
        return lambda: solve(sizes)

    return prepare


def prepare_rotor(length: int) -> Callable[[], object]:
    """Return a call of `rotor` halfway down to what cannot be undercut."""
    stages = stages_of(length)
    everything = sum(stage.saved_bytes for stage in stages)
    memory = (chains.rotor_floor(stages) + everything) // 2
    return lambda: chains.rotor(stages, memory, slots=NUM_SLOTS)


def all_series() -> list[Series]:
    """Return every solver with lengths that take it up to a few seconds."""
    long = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    return [
        Series("sqrt_n", "n", long, on_sizes(chains.sqrt_n)),
        Series("greedy", "n", long, on_sizes(chains.greedy)),
        Series("optimal_dynamic", "n", long, on_sizes(chains.optimal_dynamic)),
        Series(
            "optimal_static",
            "n^3 at worst",
            (100, 300, 1_000, 2_000, 5_000, 10_000),
            on_sizes(chains.optimal_static),
        ),
        Series(f"rotor ({NUM_SLOTS} slots)", "n^3", (25, 50, 100, 200), prepare_rotor),
    ]


def time_point(series: Series, length: int) -> Point:
    """Return the least time of up to ten runs, fewer where one takes seconds."""
    solve = series.prepare(length)
    best = math.inf
    spent = 0.0
    for _ in range(10):
        start = time.process_time()
        solve()
        elapsed = time.process_time() - start
        best = min(best, elapsed)
        spent += elapsed
        if spent > 4:
            break
    return Point(series.name, length, best)


def exponent(points: list[Point]) -> float:
    """Return the slope of log time over log length in the upper half of the lengths."""
    upper = points[len(points) // 2 - 1 :]
    lengths = np.log([point.length for point in upper])
    return float(np.polyfit(lengths, np.log([p.seconds for p in upper]), 1)[0])


def draw(results: dict[str, list[Point]], slopes: dict[str, float]) -> None:
    """Write the plot of all solvers on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    markers = "osD^v"
    for marker, (name, points) in zip(markers, results.items(), strict=True):
        axes.loglog(
            [point.length for point in points],
            [point.seconds for point in points],
            marker=marker,
            markersize=5,
            linewidth=2.2 if name == "optimal_dynamic" else 1.2,
            label=f"{name}: n^{slopes[name]:.2f}",
        )
    linear = results["optimal_dynamic"]
    ends = [linear[0].length, linear[-1].length]
    scale = 0.1 * linear[-1].seconds / linear[-1].length
    axes.loglog(ends, [scale * n for n in ends], "k:", linewidth=1, label="slope 1")
    axes.set_xlabel("values (or stages) in the chain, n")
    axes.set_ylabel("processor seconds")
    axes.set_title(
        "Chain solvers: time against length, measured exponent in the legend"
    )
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(RESULTS / "chains.png", dpi=120)


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out long chains")
    arguments = parser.parse_args()
    results: dict[str, list[Point]] = {}
    slopes: dict[str, float] = {}
    for series in all_series():
        lengths = series.lengths[:-2] if arguments.quick else series.lengths
        points = [time_point(series, length) for length in lengths]
        results[series.name] = points
        slopes[series.name] = exponent(points)
        title = f"{series.name} (expected: {series.growth})"
        print(f"{title}, measured n^{slopes[series.name]:.2f}")
        for point in points:
            print(f"  {point.length:>9,}  {point.seconds:9.4f} s")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak of this process: {peak_bytes / 2**20:.0f} MiB")
    RESULTS.mkdir(exist_ok=True)
    record = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "num_cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "rotor_slots": NUM_SLOTS,
        "process_peak_bytes": peak_bytes,
        "exponents": {name: round(slope, 3) for name, slope in slopes.items()},
        "points": [asdict(p) for points in results.values() for p in points],
    }
    (RESULTS / "chains.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(results, slopes)
    print(f"wrote {RESULTS / 'chains.json'} and {RESULTS / 'chains.png'}")


if __name__ == "__main__":
    main()
