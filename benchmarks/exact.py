"""`auto` against the optimum, on steps small enough to try everything.

    python benchmarks/exact.py

The optimum is found by an oracle that tries every schedule and shares no code with the
planners (the one of the tests), on random steps of 7 to 12 ops, a byte below the floor,
at it, half-way to the unplanned peak, and a byte below that. On steps of at most 60 ops
`auto` looks for the optimum itself; the second column runs its search without that
part, as on large steps, to show what the heuristics lose. Results go to
`benchmarks/results/exact.json`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto import _search
from lowtide.step.graph import StepGraph
from tests.unit.test_auto_exact import INFINITE, least_seconds, small_step

RESULTS = Path(__file__).parent / "results" / "exact.json"
SEEDS = range(150)
EXACT_OPS = _search.EXACT_OPS


def planned(step: StepGraph, budget: int, exact_ops: int) -> float:
    """Seconds of the plan, or infinity if none was found.

    The copy of the step knows nothing of earlier searches.
    """
    _search.EXACT_OPS = exact_ops
    try:
        return _search.Search(replace(step), 1.0).fastest(budget).seconds
    except BudgetTooSmallError:
        return INFINITE


def main() -> None:
    """Compare on every step and budget."""
    rows: list[dict[str, Any]] = []
    begun = time.perf_counter()
    for seed in SEEDS:
        step = small_step(seed)
        peak, low = step.baseline_peak_bytes, step.floor_bytes
        for budget in sorted({low - 1, low, (low + peak) // 2, peak - 1}):
            best = least_seconds(step, budget)
            row = {"seed": seed, "ops": len(step.ops), "budget_bytes": budget}
            row["optimum"] = best
            row["auto"] = planned(step, budget, EXACT_OPS)
            row["heuristics"] = planned(step, budget, 0)
            rows.append(row)
    possible = [r for r in rows if r["optimum"] < INFINITE]
    print(f"{len(rows)} steps and budgets, {len(possible)} of them possible")
    for column in ("auto", "heuristics"):
        wrong = [r for r in rows if r[column] < r["optimum"] * (1 - 1e-9)]
        gaps = [r[column] / r["optimum"] - 1 for r in possible]
        found = [g for g in gaps if g < INFINITE]
        print(
            f"{column:10}: equal on {sum(g < 1e-9 for g in gaps)}, within 1 % on "
            f"{sum(g <= 0.01 for g in gaps)}, worst {max(found):.2%}, no plan on "
            f"{len(gaps) - len(found)}, below the optimum {len(wrong)}"
        )
    print(f"{time.perf_counter() - begun:.0f} s")
    text = json.dumps(rows, indent=1).replace("Infinity", "null")
    RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
