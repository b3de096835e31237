"""`auto` against the proven optimum, on steps small enough to be solved.

    python benchmarks/exact.py

On steps of at most 60 ops `auto` looks for the optimum itself. Here its exact part runs
alone and to the end, and the rest of the search runs without it, as it does on large
steps: the difference is what the heuristics lose. Steps are chains, residual and dense
networks, U-Nets, transformers and random graphs; budgets lie between the floor and the
unplanned peak. Results go to `benchmarks/results/exact.json`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowtide._graph import StepGraph
from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto import _search
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._exact import ExactSearch
from lowtide.planners.auto._problem import Problem
from tests import graphs

RESULTS = Path(__file__).parent / "results" / "exact.json"
SHARES = (0.3, 0.5, 0.8)
MOST_STATES = 60_000
SEARCH_SECONDS = 2.0


def steps() -> Iterator[tuple[str, StepGraph]]:
    """The steps, with a name each."""
    for n in (4, 6, 8, 10):
        yield f"chain {n}", graphs.chain(n)
    for n in (2, 3):
        yield f"residual {n}", graphs.residual(n)
        yield f"dense {n}", graphs.dense(n)
        yield f"unet {n}", graphs.unet(n)
    yield "transformer 1", graphs.transformer(1, tokens=16, width=8)
    for seed in range(12):
        yield f"random {seed}", graphs.random_dag(seed, 6 + seed % 5)


def optimum(step: StepGraph, budget: int) -> tuple[float | None, bool]:
    """Least seconds, and whether the search came to its end."""
    problem = Problem(step)
    exact = ExactSearch(problem, float(budget))
    found = exact.run(Effort(problem, 60.0), most_states=MOST_STATES)
    if found.sequence is None:
        return None, not found.is_feasible
    return sum(problem.seconds[i] for i in found.sequence), True


def heuristic(step: StepGraph, budget: int) -> float | None:
    """Seconds of the plan found without the exact part."""
    for key in (_search._KNOWN, _search._LOWEST):
        step.__dict__.pop(key, None)
    try:
        return _search.Search(step, SEARCH_SECONDS).fastest(budget).seconds
    except BudgetTooSmallError:
        return None


def main() -> None:
    """Compare on every step and budget."""
    rows: list[dict[str, Any]] = []
    begun = time.perf_counter()
    _search.EXACT_OPS = 0
    for name, step in steps():
        floor, peak = step.resident_bytes, step.baseline_peak_bytes
        for share in SHARES:
            budget = floor + int(share * (peak - floor))
            best, is_ended = optimum(step, budget)
            found = heuristic(step, budget)
            rows.append(
                {
                    "step": name,
                    "ops": len(step.ops),
                    "share": share,
                    "is_solved": is_ended,
                    "optimum": best,
                    "heuristic": found,
                }
            )
    solved = [r for r in rows if r["is_solved"]]
    infeasible = [r for r in solved if r["optimum"] is None]
    feasible = [r for r in solved if r["optimum"] is not None]
    missed = [r for r in feasible if r["heuristic"] is None]
    gaps = [
        r["heuristic"] / r["optimum"] - 1
        for r in feasible
        if r["heuristic"] is not None
    ]
    print(
        f"{len(rows)} steps and budgets, {len(solved)} solved to the end, of these "
        f"{len(infeasible)} proven impossible\n"
        f"heuristics alone: equal to the optimum on {sum(g < 1e-9 for g in gaps)} of "
        f"{len(feasible)}, within 1 % on {sum(g <= 0.01 for g in gaps)}, worst "
        f"{max(gaps):.2%}, no plan on {len(missed)}\n"
        f"{time.perf_counter() - begun:.0f} s"
    )
    for r in feasible:
        if r["heuristic"] is None or r["heuristic"] / r["optimum"] > 1.01:
            print(f"  {r}")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
