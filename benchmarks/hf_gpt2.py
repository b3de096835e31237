"""Hugging Face's GPT-2, 12 x 384, 8 x 128 tokens: eager, checkpointed, with lowtide.

    python benchmarks/hf_gpt2.py             # memory and time
    python benchmarks/hf_gpt2.py --memory    # memory alone

The model stands in a wrapper that returns only the loss. Each row's peak is measured in
a fresh process after three steps, by lowtide's ledger and by the operating system,
whose figure is what the process needs above its state before the step. Times are taken
in one process, all rows in turns. Budgets: half of eager's step, what the checkpointed
blocks really take, and the lowest peak found. Results go to
`benchmarks/results/hf_gpt2.json`.
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

RESULTS = Path(__file__).parent / "results" / "hf_gpt2.json"
BATCH, SEQUENCE = 8, 128
EAGER, BLOCKS, FLOOR = "eager", "blocks", "floor"
WARM_UP = 3


def built() -> tuple[Any, Any]:
    """The wrapped model and its input."""
    import torch
    from torch import nn

    from lowtide.models._libraries import torchvision_models

    torchvision_models()  # transformers imports torchvision
    from transformers import GPT2Config, GPT2LMHeadModel

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = GPT2Config(
                n_layer=12, n_embd=384, n_head=6, n_positions=SEQUENCE, use_cache=False
            )
            self.model = GPT2LMHeadModel(config)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens, labels=tokens).loss

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens = torch.randint(50257, (BATCH, SEQUENCE))
    return Loss().train(), tokens


def prepared(way: str) -> tuple[Any, Any, dict[str, Any]]:
    """A model that trains in this way: eager, blocks, floor, or a budget in bytes."""
    import lowtide

    model, tokens = built()
    told: dict[str, Any] = {"way": way}
    if way == BLOCKS:
        options = {"use_reentrant": False}
        model.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    elif way != EAGER:
        budget: Any = way
        if way == FLOOR:
            budget = lowtide.profile(model, (tokens,)).floor_bytes
        lowtide.optimize(model, budget=budget)
    for _ in range(WARM_UP):
        model.zero_grad()
        model(tokens).backward()
    call = lowtide.planned(model)
    if call is not None:
        plan, step = call.plans[-1], call.steps[-1]
        told |= {
            "graphs": call.watch.graphs,
            "budget_bytes": plan.budget_bytes,
            "predicted_peak_bytes": plan.peak_bytes,
            "predicted_overhead": plan.overhead,
            "predicted_eager_peak_bytes": step.eager_peak_bytes,
            "resident_bytes": step.resident_bytes,
        }
    return model, tokens, told


def bytes_of(way: str) -> dict[str, Any]:
    """The peaks of one row, measured in this process."""
    from lowtide.engine.checks.meter import allocated_peak, preserved, rss_peak

    model, tokens, told = prepared(way)

    def step() -> None:
        model(tokens).backward()

    with preserved([model]):
        told["ledger_peak_bytes"] = allocated_peak(step, [model], tokens).peak_bytes
        told["rss_peak_bytes"] = rss_peak(step, [model])
    return told


def times_of(ways: list[str]) -> dict[str, dict[str, float]]:
    """Seconds of a step in each way, and how often eager's that is; in turns."""
    from lowtide.engine.checks.meter import timed

    sides = [prepared(way) for way in ways]
    steps = [lambda m=m, t=t: m(t).backward() for m, t, _ in sides]
    samples = timed(steps, [m for m, _, _ in sides], 7)
    return {
        way: {
            "seconds": median(ours),
            "time_ratio": median(
                [a / b for a, b in zip(ours, samples[0], strict=True)]
            ),
        }
        for way, ours in zip(ways, samples, strict=True)
    }


def fresh(job: str, environment: dict[str, str]) -> Any:
    """The answer of a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", job],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def show(row: dict[str, Any], eager_bytes: int) -> str:
    """A row as text."""
    real = row["ledger_peak_bytes"]
    text = (
        f"{row['way']:12} {real / 2**20:8.1f} MiB  {real / eager_bytes:6.3f} of eager"
    )
    if "predicted_peak_bytes" in row:
        off = row["predicted_peak_bytes"] / real - 1
        text += f"  predicted {off:+.1%}, {row['graphs']} graph"
    if "time_ratio" in row:
        text += f"  {row['time_ratio']:.3f} x its time"
    return text


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="leave the times out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        several = "," in given.child
        ways = given.child.split(",")
        print(json.dumps(times_of(ways) if several else bytes_of(given.child)))
        return
    from lowtide.engine.checks.meter import MALLOC_ENVIRONMENT

    rows = {way: fresh(way, MALLOC_ENVIRONMENT) for way in (EAGER, BLOCKS)}
    eager_bytes, blocks_bytes = (rows[w]["ledger_peak_bytes"] for w in (EAGER, BLOCKS))
    for way in (str(eager_bytes // 2), str(blocks_bytes), FLOOR):
        rows[way] = fresh(way, MALLOC_ENVIRONMENT)
    if not given.memory:
        for way, times in fresh(",".join(rows), {}).items():
            rows[way] |= times
    for row in rows.values():
        print(show(row, eager_bytes))
    RESULTS.write_text(json.dumps(list(rows.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()
