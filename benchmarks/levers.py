"""How far down a step goes: the lowest peak with and without updates in the backward.

`python -m benchmarks.levers [MODEL ...]`. Each row runs in a process of its own: the
peak of the plain step and update, the lowest peak that lowtide finds, and what a step
planned for it really takes, by the ledger of allocated bytes. Results go to
`benchmarks/results/levers.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "levers.json"
MODELS = ("gpt2", "bert", "resnet50", "vit", "alexnet")
UPDATES = ("after", "in_backward")
MIB = 1 << 20


def run(name: str, update: str) -> dict[str, Any]:
    """One row: real bytes of a training step with AdamW, plain and at the floor."""
    import torch

    import lowtide
    from lowtide.engine.costs.ledger import ledger
    from lowtide.engine.training import arguments_of, default_loss
    from lowtide.models import build

    torch.set_num_threads(1)
    target = build(name)
    model, batch, loss = target.model, target.batch, target.loss
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = arguments_of(batch)

    def step() -> None:
        (loss or default_loss)(inputs.call(model)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def peak() -> int:
        state = list(optimizer.state.values())
        return ledger(step, modules=[model], batch=(batch, state)).peak_bytes

    step()
    plain = peak()
    asked: dict[str, Any] = {"optimizer": optimizer, "update": update, "cache": False}
    lowtide.optimize(model, budget=1, **asked)
    try:
        step()
    except lowtide.BudgetTooSmallError as error:
        floor = error.floor_bytes
    lowtide.restore(model)
    lowtide.optimize(model, budget=floor, **asked)
    for _ in range(3):
        step()
    return {
        "model": name,
        "update": update,
        "plain_bytes": plain,
        "floor_bytes": floor,
        "real_bytes": peak(),
    }


def main(names: list[str]) -> None:
    rows = []
    for name in names or MODELS:
        for update in UPDATES:
            command = [sys.executable, "-m", "benchmarks.levers", "--one", name, update]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name}, {update}: {done.stderr[-2000:]}")
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            floor = row["floor_bytes"] / row["plain_bytes"]
            real = row["real_bytes"] / row["plain_bytes"]
            print(
                f"{name:12} {update:12} plain {row['plain_bytes'] / MIB:8.1f} MiB, "
                f"floor {floor:6.1%}, really {real:6.1%}",
                flush=True,
            )
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(run(*sys.argv[2:4])))
    else:
        main(sys.argv[1:])
