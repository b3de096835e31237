"""Write a planner of your own: drop the largest storages until the step fits.

    python examples/custom_planner.py

A planner is a function that takes a step and a budget and returns a plan. It needs no
torch. To make it available by its name, list it in the `pyproject.toml` of a package:

    [project.entry-points."lowtide.planners"]
    largest_first = "my_package.largest_first:plan"
"""

import lowtide
from lowtide.models import build
from lowtide.planners import from_kept, make_plan, saved_by_baseline


def plan(step, budget_bytes=None, *, time_limit=10.0):
    """Return the plan that keeps the smallest storages, as many as fit."""
    kept = sorted(saved_by_baseline(step), key=lambda s: step.sizes[s])
    lowest = None
    while True:
        found = make_plan(
            step,
            from_kept(step, kept),
            planner="largest_first",
            budget_bytes=budget_bytes,
        )
        if budget_bytes is not None and found.peak_bytes <= budget_bytes:
            return found
        if lowest is None or found.peak_bytes < lowest.peak_bytes:
            lowest = found
        if not kept and budget_bytes is None:
            return lowest
        if not kept:
            raise lowtide.BudgetTooSmallError(budget_bytes, lowest.peak_bytes)
        kept.pop()


def main() -> None:
    example = build("tiny_gpt", layers=3, dropout=0.1)
    model, batch, loss = example.model, example.batch, example.loss
    step = lowtide.profile(model, batch, loss=loss)
    budget = step.baseline_peak_bytes * 7 // 10
    mine = plan(step, budget)
    print(mine)
    print(lowtide.plan(step, budget=budget, time_limit=3))

    # Any valid schedule can run, and gives exactly the same gradients.
    lowtide.verify(model, batch, plan=mine, loss=loss).raise_if_failed()
    print("verified: the same bits")


if __name__ == "__main__":
    main()
