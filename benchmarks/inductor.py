"""Budgets of compiled training: lowtide's, in bytes, beside torch's ratio.

    python benchmarks/inductor.py                 # every model, one after the other
    python benchmarks/inductor.py gpt2 vit        # some of them
    python benchmarks/inductor.py gpt2 --memory   # no times: for a busy machine
    python benchmarks/inductor.py --show          # what was kept

For each model: the compiled step without a budget, torch's budgets of 0.75, 0.5, 0.25,
0.1 and 0, lowtide at the real peak of each of these and at its lowest, and lowtide with
PyTorch's own kernels at the same peaks. Peaks are what torch's allocator handed out and
what the operating system saw, each in a fresh process after two steps; times are taken
in one process with one thread, all ways in turns. Gradients are compared bit by bit
with those of the compiled step without a budget. Models are small versions, with
dropout where they have it. A model's rows are kept as soon as they are complete, in
`benchmarks/results/inductor.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results" / "inductor.json"
BUDGETS = ("0.75", "0.5", "0.25", "0.1", "0")
_TEXT = {"sequence": 128, "layers": 3, "width": 192, "heads": 6, "vocab": 2000}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet50": ("resnet50", {"batch": 8, "image": 64, "classes": 10}),
    "densenet121": ("densenet121", {"batch": 4, "image": 64, "classes": 10}),
    "gpt2": ("gpt2", {"batch": 8, **_TEXT, "dropout": 0.1}),
    "vit": ("vit", {"batch": 8, "image": 64, "patch": 8, "layers": 6, "classes": 10}),
    "bert": ("bert", {"batch": 8, **_TEXT, "dropout": 0.1}),
    "llama": ("llama", {"batch": 4, **_TEXT}),
}


class Side:
    """A model that trains in one way, warmed up.

    Ways are "compiled", "torch 0.5", "lowtide 1000000" and "eager 1000000", with a
    budget in bytes, or "lowtide floor".
    """

    def __init__(self, name: str, way: str) -> None:
        import torch
        from torch._functorch import config

        import lowtide
        from lowtide.engine.training import arguments_of, training_step

        torch.set_num_threads(1)
        word, options = MODELS[name]
        example = lowtide.models.build(word, **options)
        self.model, self.batch = example.model, example.batch
        self.way, (kind, _, budget) = way, way.partition(" ")
        ratio = float(budget) if kind == "torch" else 1.0
        if kind in ("compiled", "torch"):
            self.model.compile(dynamic=False)
        else:
            inner: Any = "inductor" if kind == "lowtide" else "eager"
            asked = self.floor(example.loss) if budget == "floor" else int(budget)
            lowtide.optimize(self.model, budget=asked, inner=inner)
        inputs = arguments_of(self.batch)
        self.step = training_step(self.model, example.loss, inputs)
        with config.patch(activation_memory_budget=ratio):  # type: ignore[attr-defined]
            for _ in range(2):
                self.model.zero_grad(set_to_none=True)
                self.step()

    def floor(self, loss: Any) -> int:
        """The lowest budget that is not refused."""
        import lowtide
        from lowtide.engine.training import arguments_of, training_step

        lowtide.optimize(self.model, budget=1, inner="inductor")
        try:
            training_step(self.model, loss, arguments_of(self.batch))()
        except lowtide.BudgetTooSmallError as error:
            return error.floor_bytes
        finally:
            lowtide.restore(self.model)
        raise AssertionError("a budget of one byte was accepted")


def bytes_of(name: str, way: str) -> dict[str, Any]:
    """The peaks and gradients of one way, measured in this process."""
    import torch

    import lowtide
    from lowtide.engine.checks.meter import rss_peak
    from lowtide.engine.costs.machine import count_allocations

    side = Side(name, way)
    told: dict[str, Any] = {"way": way}
    call = lowtide.planned(side.model)
    if call is not None:
        call.learning.end()
        call.learning.is_paused = True  # a thread has one profiler
        plan = call.plans[-1]
        told |= {"budget_bytes": plan.budget_bytes, "overhead": plan.overhead}
        told |= {"predicted_peak_bytes": plan.peak_bytes, "plans": len(call.plans)}
    told["rss_peak_bytes"] = rss_peak(side.step, [side.model])
    side.model.zero_grad(set_to_none=True)

    def run() -> None:
        with torch.enable_grad():
            side.step()

    values = [*side.model.parameters(), *side.model.buffers()]
    values += [v for v in torch.utils._pytree.tree_leaves(side.batch)]  # type: ignore
    resident = sum(v.nbytes for v in values if isinstance(v, torch.Tensor))
    _, allocated = count_allocations(run, torch.device("cpu"))
    told["peak_bytes"] = resident + allocated
    torch.manual_seed(0)
    side.model.zero_grad(set_to_none=True)
    side.step()
    gradients = [p.grad for p in side.model.parameters() if p.grad is not None]
    told["gradients"] = [hash(g.numpy().tobytes()) for g in gradients]
    told["sums"] = [float(g.double().abs().sum()) for g in gradients]
    return told


def measured(name: str, way: str) -> dict[str, Any]:
    """`bytes_of` in a fresh process."""
    from lowtide.engine.checks.meter import MALLOC_ENVIRONMENT

    environment = {**os.environ, **MALLOC_ENVIRONMENT, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, __file__, name, "--one", way],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return {"way": way, "problem": done.stderr.strip().splitlines()[-1]}
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {way}: {found['peak_bytes'] / 2**20:.1f} MiB", flush=True)
    return found


def compare(name: str, row: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """The row with how its gradients differ from those of the compiled step."""
    if "problem" in row:
        return row
    hashes, sums = row.pop("gradients"), row.pop("sums")
    row["wrong_gradients"] = sum(
        a != b for a, b in zip(hashes, plain["gradients"], strict=True)
    )
    row["largest_difference"] = max(
        abs(a - b) / max(abs(b), 1e-30)
        for a, b in zip(sums, plain["sums"], strict=True)
    )
    return row


def run(name: str, steps: int) -> list[dict[str, Any]]:
    """All rows of one model."""
    plain = measured(name, "compiled")
    theirs = [measured(name, f"torch {ratio}") for ratio in BUDGETS]
    peaks = sorted({r["peak_bytes"] for r in theirs if "problem" not in r})
    ours = [measured(name, f"lowtide {peak}") for peak in reversed(peaks)]
    ours.append(measured(name, "lowtide floor"))
    ours += [measured(name, f"eager {peak}") for peak in reversed(peaks)]
    rows = [compare(name, row, plain) for row in (*theirs, *ours)]
    rows.insert(0, compare(name, dict(plain), plain))
    if steps:
        from lowtide.engine.checks.meter import timed

        good = [row for row in rows if "problem" not in row]
        sides = [Side(name, row["way"]) for row in good]
        samples = timed([s.step for s in sides], [s.model for s in sides], steps)
        for row, own in zip(good, samples, strict=True):
            turns = [a / b for a, b in zip(own, samples[0], strict=True)]
            row |= {"seconds": median(own), "time_ratio": median(turns)}
    return rows


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """The rows of one model, as text."""
    print(f"\n{name}\n{'way':22} {'MiB':>8} {'budget':>8} {'time':>7}  gradients")
    for row in rows:
        if "problem" in row:
            print(f"{row['way']:22} {row['problem']}")
            continue
        budget = row.get("budget_bytes", 0) / 2**20
        time = f"{row['time_ratio'] - 1:+7.1%}" if "time_ratio" in row else "      -"
        wrong = row["wrong_gradients"]
        equal = f"{wrong} differ, by {row['largest_difference']:.1e}"
        print(
            f"{row['way']:22} {row['peak_bytes'] / 2**20:8.1f} {budget:8.1f} {time}  "
            f"{equal if wrong else 'equal'}"
        )


def main() -> None:
    """Run the models named on the command line and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="take no times")
    parser.add_argument("--show", action="store_true", help="only what was kept")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(bytes_of(options.models[0], options.one)))
        return
    for name in options.models:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        if not options.show:
            kept[name] = run(name, 0 if options.memory else options.steps)
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        if name in kept:
            show(name, kept[name])


if __name__ == "__main__":
    main()
