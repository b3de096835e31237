"""Predicted against real peaks: whether the budget is kept, and how close it is.

Each row runs in a fresh process: the model is planned for the budget, trained for one
step to warm up, and then measured: bytes that the dispatcher's ledger saw allocated,
and bytes that the operating system saw above the state before the step.

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
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "peaks.json"
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 8, "image": 160},
    "densenet121": {"batch": 8, "image": 160},
    "gpt2": {"batch": 4, "sequence": 256, "layers": 6, "vocab": 8192},
    "vit": {"batch": 8},
}
BUDGETS = ("100%", "80%", "60%", "floor")
KEEP_ALL = "keep_all"


def child(name: str, budget: str, threads: int, folder: str) -> dict[str, Any]:
    """One row, measured in this process; the profile is shared through the folder."""
    import torch

    import lowtide
    from lowtide import models
    from lowtide._api import arguments_of
    from lowtide._meter import allocated_peak, median, preserved, rss_peak, timed
    from lowtide._run import default_loss

    torch.set_num_threads(threads)
    example = models.build(name, **MODELS[name])
    model, loss = example.model, example.loss
    args, kwargs = arguments_of(example.batch)

    def step() -> None:
        (loss or default_loss)(model(*args, **kwargs)).backward()

    row: dict[str, Any] = {"model": name, "budget": budget}
    plan = None
    if budget != "eager":
        file = Path(folder) / f"{name}.step.json"
        if not file.exists():
            lowtide.profile(model, example.batch, loss=loss, name=name).save(file)
        profiled = lowtide.StepGraph.load(file)
        if budget == KEEP_ALL:
            plan = lowtide.plan(profiled, budget="1 TiB", planner=KEEP_ALL)
        else:
            limit = profiled.floor_bytes if budget == "floor" else budget
            plan = lowtide.plan(profiled, budget=limit)
        lowtide.apply(model, plan)
        row |= {
            "budget_bytes": plan.budget_bytes,
            "predicted_peak_bytes": plan.peak_bytes,
            "predicted_overhead": plan.overhead,
            "resident_bytes": profiled.resident_bytes,
        }
    step()
    with preserved([model]):
        peak, resident, _ = allocated_peak(step, [model], example.batch)
        row |= {"ledger_peak_bytes": peak, "ledger_resident_bytes": resident}
        row["rss_peak_bytes"] = rss_peak(step, [model])
        if plan is not None:
            plain = lowtide.planned(model).function

            def eager() -> None:
                (loss or default_loss)(plain(*args, **kwargs)).backward()

            eager()
            ours, theirs = timed([step, eager], [model], 3)
            row["seconds"], row["eager_seconds"] = median(ours), median(theirs)
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            row["time_ratio"] = median(ratios)
    return row


def run(name: str, budget: str, threads: int, folder: str) -> dict[str, Any]:
    """One row, measured in a fresh process."""
    from lowtide._meter import MALLOC_ENVIRONMENT

    job = [name, budget, str(threads), folder]
    command = [sys.executable, __file__, "--child", *job]
    done = subprocess.run(
        command,
        env={**os.environ, **MALLOC_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"model": name, "budget": budget, "error": done.stderr[-400:]}
    return json.loads(done.stdout.splitlines()[-1])


def show(row: dict[str, Any]) -> str:
    """A row as text, in MiB."""
    if "error" in row:
        return f"{row['model']:12} {row['budget']:8} {row['error']}"
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
    parser.add_argument("--budgets", nargs="*", default=["eager", KEEP_ALL, *BUDGETS])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=4, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, budget, threads, folder = given.child
        print(json.dumps(child(name, budget, int(threads), folder)))
        return
    print(
        f"{'model':12} {'budget':8} {'budget':>9} {'predicted':>9} {'ledger':>9} "
        f"{'':7} {'system':>9} {'':7}  time / eager     (MiB)"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            for budget in given.budgets:
                rows.append(run(name, budget, given.threads, folder))
                print(show(rows[-1]), flush=True)
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
