"""The first step of a process: its time from the start, and its peak.

Three processes train a model: under a budget with nothing kept on disk, under a budget
again, and by `torch.compile(backend="aot_eager")`. Each imports all that it needs,
builds the model and tells when its first backward has ended, and how long its
processor was busy by then, which other processes disturb less.

With `--peaks`, what the C library hands out is counted in the first step and in those
after it, plainly and under a budget with nothing kept on disk (`zoo/allocated.py`):
lowtide's own ledger cannot count while lowtide measures ops. What the operating system
saw is told as well; it holds what dynamo keeps for itself, too.

    python benchmarks/first_step.py                  # times: on a quiet machine
    python benchmarks/first_step.py gpt2 --budget 70%
    python benchmarks/first_step.py --peaks
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.zoo.allocated import start_counting

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "first_step.json"
# GPT-2 of Hugging Face, 12 x 384.
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": ("gpt2", {"width": 384, "heads": 6, "batch": 8, "sequence": 128}),
    "resnet50": ("resnet50", {}),
}
STEPS = 4


def train(name: str, how: str, began: float, num_steps: int) -> dict[str, Any]:
    """Train in this process, and tell of each step."""
    import lowtide
    from lowtide import models
    from lowtide.engine.capture.tensors import bytes_in
    from lowtide.engine.training import arguments_of, default_loss

    model_name, options = MODELS[name]
    example = models.build(model_name, **options)
    model = call = example.model
    if how == "aot_eager":
        import torch

        call = torch.compile(model, backend="aot_eager")
    elif how != "eager":
        lowtide.optimize(model, budget=how)
    inputs, loss = arguments_of(example.batch), example.loss or default_loss
    resident = bytes_in([*model.parameters(), *model.buffers()])
    found: dict[str, Any] = {"peaks": [], "system_peaks": []}
    for number in range(num_steps):
        model.zero_grad(set_to_none=True)
        watch = _Peak() if num_steps > 1 else None
        loss(inputs.call(call)).backward()
        if number == 0:
            used = [resource.getrusage(w) for w in (0, resource.RUSAGE_CHILDREN)]
            found["seconds"] = time.time() - began
            found["busy_seconds"] = sum(u.ru_utime + u.ru_stime for u in used)
        if watch is not None:
            allocated, system = watch.bytes()
            found["peaks"].append(resident + allocated)
            found["system_peaks"].append(resident + system)
    plans = [] if how in ("eager", "aot_eager") else lowtide.planned(model).plans
    found["budget_bytes"] = plans[-1].budget_bytes if plans else None
    return found


class _Peak:
    """What is allocated, and what the system sees, from here on above what is there."""

    def __init__(self) -> None:
        from benchmarks.zoo.allocated import Allocated
        from lowtide.engine.costs.machine import status_bytes

        Path("/proc/self/clear_refs").write_text("5")
        self.allocated, self.status = Allocated(), status_bytes
        self.before = status_bytes("VmRSS")

    def bytes(self) -> tuple[int, int]:
        return self.allocated.rise_bytes() or 0, self.status("VmHWM") - self.before


def in_fresh_process(
    name: str, how: str, cache: str, num_steps: int = 1, **environment: str
) -> dict[str, Any]:
    """What such a process tells; `cache` is where lowtide keeps what it learns."""
    command = [sys.executable, __file__, name, "--budget", how]
    environment |= {"LOWTIDE_CACHE_DIR": cache}
    command += ["--train", str(num_steps), "--began", str(time.time())]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def times(name: str, budget: str) -> dict[str, Any]:
    """The first, the second, and aot_eager's."""
    with tempfile.TemporaryDirectory() as cache:
        ways = {"first": budget, "second": budget, "aot_eager": "aot_eager"}
        found = {way: in_fresh_process(name, how, cache) for way, how in ways.items()}
    row: dict[str, Any] = {"budget": budget}
    for kind in ("seconds", "busy_seconds"):
        row |= {f"{way}_{kind}": each[kind] for way, each in found.items()}
        row[f"second_ratio_{kind}"] = found["second"][kind] / found["aot_eager"][kind]
    return row


def peaks(name: str, budget: str) -> dict[str, Any]:
    """What the first step takes, and the most of those after it."""
    from lowtide.engine.checks.meter import MALLOC_ENVIRONMENT

    row: dict[str, Any] = {}
    for way, how in (("eager", "eager"), ("planned", budget)):
        with tempfile.TemporaryDirectory() as cache:
            found = in_fresh_process(name, how, cache, STEPS, **MALLOC_ENVIRONMENT)
        for kind in ("peaks", "system_peaks"):
            row[f"{way}_first_{kind}"] = found[kind][0]
            row[f"{way}_later_{kind}"] = max(found[kind][1:])
        row["budget_bytes"] = found["budget_bytes"]
    return row


def main() -> None:
    """Run the named models, or all, and keep the rows of the others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[*MODELS], metavar="MODEL")
    parser.add_argument("--budget", default="70%")
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        if asked.train > 1:
            start_counting()
        (name,) = asked.models
        print(json.dumps(train(name, asked.budget, asked.began, asked.train)))
        return
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.models:
        found = (peaks if asked.peaks else times)(name, asked.budget)
        rows[name] = {**rows.get(name, {}), **found}
        print(name, json.dumps(found), flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
