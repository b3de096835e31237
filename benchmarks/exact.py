"""`auto` and its search against the optimum, on small steps that are hard to plan.

    python benchmarks/exact.py                      # all cases, results are kept
    python benchmarks/exact.py --label "what changed"
    python benchmarks/exact.py --limit 60 --dry     # a quick look
    python benchmarks/exact.py --only search        # without the column `auto`
    python benchmarks/exact.py --only search --missing   # cases without figures so far

The steps have 13 to 40 ops, branches, replays of random draws, ops that may not run
twice, and up to two graph breaks; the budgets are tight. The search was tuned on steps
of low seeds; these begin at `FIRST_SEED`, which nobody looked at before. The optimum
comes from the tests' oracle, which shares no code with the planners; steps that it
cannot solve within `STATES` states are left out. Column `auto` is the planner as it is.
Column `search` is its search alone, without the exact part and the other planners: what
plans real steps.
Both stop by counted work, so the figures do not depend on the machine. Row `large` is
`auto` on steps above its exact part's limit, where the optimum is not known: there the
distance is that from the proven bound, so the true one is smaller.

An optimum never changes, so those in `benchmarks/results/exact.json` are taken from
there; the summary of each run is appended to the history in the same file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto import _search
from lowtide.step.graph import StepGraph
from tests.oracle import (
    INFINITE,
    TooManyStatesError,
    least_seconds_within,
    random_step,
)

RESULTS = Path(__file__).parent / "results" / "exact.json"
STATES = 20_000
SEARCH_SECONDS = 1.0
CASES = 500
FIRST_SEED = 5_000
FORWARD_OPS = (6, 7, 8, 9, 10, 12)
LARGE_FORWARD_OPS = (24, 28)
SHARES = (0.85, 0.75, 0.65, 0.55)
COLUMNS = ("auto", "search")
EXACT_OPS = _search.EXACT_OPS
other_plans = _search.other_plans


def grid(forward_ops: tuple[int, ...]) -> Iterator[tuple[str, StepGraph, int]]:
    """A key, a step and a budget, for ever."""
    seed = FIRST_SEED
    while True:
        for num_forward in forward_ops:
            breaks = seed % 3
            step = random_step(seed, num_forward, breaks=breaks)
            span = step.baseline_peak_bytes - step.resident_bytes
            for share in SHARES:
                key = f"{seed} {num_forward} {breaks} {share}"
                yield key, step, step.resident_bytes + int(share * span)
        seed += 1


def optimum(step: StepGraph, budget: int) -> float | None:
    """Seconds of the fastest schedule; None where there is none or it is not found."""
    try:
        best = least_seconds_within(step, budget, most_states=STATES)
    except TooManyStatesError:
        return None
    return None if best == INFINITE else best


def planned(step: StepGraph, budget: int, *, alone: bool) -> float | None:
    """Seconds of the plan, or None if none was found.

    The copy of the step knows nothing of earlier searches.
    """
    _search.EXACT_OPS = 0 if alone else EXACT_OPS
    _search.other_plans = (lambda *_, **__: ()) if alone else other_plans
    try:
        return _search.Search(replace(step), SEARCH_SECONDS).fastest(budget).seconds
    except BudgetTooSmallError:
        return None


def large(count: int) -> dict[str, Any]:
    """How far plans of larger steps are from what is proven of them."""
    rows: list[dict[str, Any]] = []
    for key, step, budget in grid(LARGE_FORWARD_OPS):
        if len(rows) == count:
            break
        if len(step.ops) <= EXACT_OPS:
            continue
        try:
            plan = _search.Search(replace(step), SEARCH_SECONDS).fastest(budget)
        except BudgetTooSmallError as error:
            # Below what is proven to be the least there is nothing to find.
            if budget >= error.bound_bytes:
                rows.append({"case": key, "optimum": 1.0, "large": None})
            continue
        bound = plan.proof.bound_seconds
        rows.append({"case": key, "optimum": bound, "large": plan.seconds})
    return summary(rows, "large")


def summary(rows: list[dict[str, Any]], column: str) -> dict[str, Any]:
    """How many got a plan, how many the best one, and the largest distance from it."""
    gaps = [r[column] / r["optimum"] - 1 for r in rows if r[column] is not None]
    return {
        "cases": len(rows),
        "no_plan": len(rows) - len(gaps),
        "optimal": sum(gap < 1e-9 for gap in gaps),
        "mean_gap": sum(gaps) / max(1, len(gaps)),
        "worst_gap": max(gaps, default=0.0),
    }


def main() -> None:
    """Compare on every step and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=CASES, help="number of cases")
    parser.add_argument("--large", type=int, default=40, help="number of large steps")
    parser.add_argument("--only", choices=COLUMNS, help="one column")
    parser.add_argument("--missing", action="store_true", help="keep known figures")
    parser.add_argument("--label", default="")
    parser.add_argument("--dry", action="store_true", help="keep no results")
    options = parser.parse_args()
    columns = (options.only,) if options.only else COLUMNS
    known = json.loads(RESULTS.read_text())
    optima: dict[str, float | None] = known["optima"]
    rows: list[dict[str, Any]] = []
    done = {row["case"]: row for row in known["cases"] if options.missing}
    for key, step, budget in grid(FORWARD_OPS):
        if len(rows) == options.limit:
            break
        if key not in optima:
            optima[key] = optimum(step, budget)
        best = optima[key]
        if best is None:
            continue
        row = done.get(key) or {"case": key, "ops": len(step.ops), "optimum": best}
        for column in columns:
            if column in row:
                continue
            row[column] = planned(step, budget, alone=column == "search")
        rows.append(row)
    found = {column: summary(rows, column) for column in columns}
    _search.EXACT_OPS, _search.other_plans = EXACT_OPS, other_plans
    if not options.only:
        found["large"] = large(options.large)
    for column, figures in found.items():
        print(
            f"{column:6}: {figures['cases']} cases, no plan for {figures['no_plan']}, "
            f"optimal {figures['optimal']}, worst +{figures['worst_gap']:.1%}"
        )
    if not options.dry:
        known["cases"] = rows
        known["history"].append({"label": options.label, **found})
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
