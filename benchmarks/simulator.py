"""How fast a schedule is simulated.

python benchmarks/simulator.py
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from lowtide.step.graph import Op, Region, StepGraph, Storage
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate

RESULTS = Path(__file__).parent / "results" / "simulator.json"


def chain(num_ops: int) -> StepGraph:
    """A chain of layers with its backward: every op but the turn reads two storages."""
    half = num_ops // 2
    storages = [Storage(0, "x", 4096, kind="input", resident=True)]
    ops: list[Op] = []
    for i in range(half):
        storages.append(Storage(i + 1, f"a{i}", 4096))
        reads = (0,) if i == 0 else (0, i)
        ops.append(Op(i, f"f{i}", "f", reads, (i + 1,), 1e-3, signature="f"))
    gradient = half + 1
    storages.append(Storage(gradient, "d", 4096, kind="temporary"))
    ops.append(
        Op(half, "turn", "turn", (half,), (gradient,), phase="backward", piece=-1,
           once="runs outside", opens=1, signature="turn")
    )  # fmt: skip
    for i in reversed(range(1, half)):
        storages.append(Storage(len(storages), f"d{i}", 4096, kind="temporary"))
        number, made = len(ops), len(storages) - 1
        reads = (i, made - 1)
        ops.append(
            Op(number, f"b{i}", "b", reads, (made,), 2e-3, 0, "backward", signature="b")
        )
    regions = (Region(0, "forward"), Region(0, "backward"))
    return StepGraph(tuple(ops), tuple(storages), (len(storages) - 1,), regions)


def milliseconds(function: object, repeats: int) -> float:
    """Median time of a call."""
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()  # type: ignore[operator]
        samples.append(1e3 * (time.perf_counter() - start))
    return statistics.median(samples)


def main() -> None:
    """Measure three sizes and write them down."""
    rows = []
    print(f"{'ops':>7} {'simulate':>10}")
    for num_ops in (1_000, 5_000, 20_000):
        step = chain(num_ops)
        schedule = with_frees(step, step.baseline)
        whole = milliseconds(lambda s=step, c=schedule: simulate(s, c), 15)
        rows.append({"ops": len(step.ops), "simulate_ms": whole})
        print(f"{len(step.ops):7} {whole:7.2f} ms", flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
