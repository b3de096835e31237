"""Predicted against real peaks: whether the budget is kept, and how close it is.

Each row runs in a fresh process: the model is planned for the budget, trained for one
step to warm up, and then measured: bytes that the dispatcher's ledger saw allocated,
and bytes that the operating system saw above the state before the step. Its allocator
returns every block at once, or the system's figure would be that of its reserves; that
costs time, so the steps are timed in another process with the usual allocator, all
budgets of a model in turns with eager.

    python benchmarks/peaks.py                 # all models and budgets
    python benchmarks/peaks.py resnet50 --budgets 100% 60%
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results" / "peaks.json"
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 16, "image": 128},
    "densenet121": {"batch": 8, "image": 128},
    "gpt2": {"batch": 4, "sequence": 256, "layers": 6, "vocab": 8192},
    "vit": {"batch": 8},
}
BUDGETS = ("100%", "80%", "60%", "floor")
KEEP_ALL = "keep_all"
EAGER = "eager"


def built(name: str, threads: int) -> tuple[Any, Callable[[], Any]]:
    """A model and its training step."""
    import torch

    from lowtide import models
    from lowtide.engine.training import arguments_of, training_step

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    example = models.build(name, **MODELS[name])
    inputs = arguments_of(example.batch)
    return example, training_step(example.model, example.loss, inputs)


def planned(example: Any, name: str, budget: str, folder: str) -> tuple[Any, Any]:
    """Profile and plan, each made once and shared through the folder."""
    import lowtide

    profile_file = Path(folder) / f"{name}.step.json"
    if not profile_file.exists():
        lowtide.profile(
            example.model, example.batch, loss=example.loss, name=name
        ).save(profile_file)
    profiled = lowtide.StepGraph.load(profile_file)
    plan_file = Path(folder) / f"{name}.{budget}.plan.json"
    if not plan_file.exists():
        if budget == KEEP_ALL:
            plan = lowtide.plan(profiled, budget="1 TiB", planner=KEEP_ALL)
        else:
            limit = profiled.floor_bytes if budget == "floor" else budget
            plan = lowtide.plan(profiled, budget=limit)
        plan.save(plan_file)
    return profiled, lowtide.Plan.load(plan_file)


def bytes_of(name: str, budget: str, threads: int, folder: str) -> dict[str, Any]:
    """The peaks of one row, measured in this process."""
    import lowtide
    from lowtide.engine.checks.meter import allocated_peak, preserved, rss_peak

    example, step = built(name, threads)
    model = example.model
    row: dict[str, Any] = {"model": name, "budget": budget}
    if budget != EAGER:
        profiled, plan = planned(example, name, budget, folder)
        lowtide.apply(model, plan)
        row |= {
            "budget_bytes": plan.budget_bytes,
            "predicted_peak_bytes": plan.peak_bytes,
            "predicted_overhead": plan.overhead,
            "resident_bytes": profiled.resident_bytes,
        }
    step()
    with preserved([model]):
        found = allocated_peak(step, [model], example.batch)
        row["ledger_peak_bytes"] = found.peak_bytes
        row["ledger_resident_bytes"] = found.resident_bytes
        row["rss_peak_bytes"] = rss_peak(step, [model])
    return row


def times_of(
    name: str, budgets: Sequence[str], threads: int, folder: str
) -> dict[str, dict[str, float]]:
    """Time over eager's at each budget, all in turns in this process."""
    import lowtide
    from lowtide.engine.checks.meter import timed

    sides = [built(name, threads) for _ in [EAGER, *budgets]]
    for (example, _), budget in zip(sides[1:], budgets, strict=True):
        lowtide.apply(example.model, planned(example, name, budget, folder)[1])
    for _, step in sides:
        step()
    samples = timed(
        [step for _, step in sides], [example.model for example, _ in sides], 7
    )
    return {
        budget: {
            "seconds": median(ours),
            "eager_seconds": median(samples[0]),
            "time_ratio": median(
                [a / b for a, b in zip(ours, samples[0], strict=True)]
            ),
        }
        for budget, ours in zip(budgets, samples[1:], strict=True)
    }


def fresh(*job: str, environment: dict[str, str]) -> Any:
    """The answer of a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *job],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(job)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(row: dict[str, Any]) -> str:
    """A row as text, in MiB."""
    unit = 2**20

    def cell(key: str) -> str:
        return f"{row[key] / unit:9.1f}" if key in row else f"{'':9}"

    ledger_error = rss_error = ratio = ""
    if "predicted_peak_bytes" in row:
        predicted = row["predicted_peak_bytes"]
        above = predicted - row["resident_bytes"]
        ledger_error = f"{row['ledger_peak_bytes'] / predicted - 1:+7.1%}"
        rss_error = f"{row['rss_peak_bytes'] / above - 1:+7.1%}"
        expected = 1 + row["predicted_overhead"]
        ratio = f"{row['time_ratio']:6.3f} (predicted {expected:.3f})"
    return (
        f"{row['model']:12} {row['budget']:8} {cell('budget_bytes')} "
        f"{cell('predicted_peak_bytes')} {cell('ledger_peak_bytes')} {ledger_error:>7} "
        f"{cell('rss_peak_bytes')} {rss_error:>7}  {ratio}"
    )


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--budgets", nargs="*", default=[EAGER, KEEP_ALL, *BUDGETS])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", nargs=4, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, budgets, threads, folder = given.child
        if "," in budgets:
            answer: Any = times_of(name, budgets.split(",")[1:], int(threads), folder)
        else:
            answer = bytes_of(name, budgets, int(threads), folder)
        print(json.dumps(answer))
        return
    print(
        f"{'model':12} {'budget':8} {'budget':>9} {'predicted':>9} {'ledger':>9} "
        f"{'':7} {'system':>9} {'':7}  time / eager     (MiB)"
    )
    from lowtide.engine.checks.meter import MALLOC_ENVIRONMENT

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            rest = (str(given.threads), folder)
            found = [
                fresh(name, budget, *rest, environment=MALLOC_ENVIRONMENT)
                for budget in given.budgets
            ]
            planned_ones = [b for b in given.budgets if b != EAGER]
            times = fresh(name, ",".join([EAGER, *planned_ones]), *rest, environment={})
            rows += [row | times.get(row["budget"], {}) for row in found]
            print("\n".join(map(show, rows[-len(found) :])), flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [r for r in known if r["model"] not in given.models] + rows
    rows.sort(key=lambda row: list(MODELS).index(row["model"]))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
