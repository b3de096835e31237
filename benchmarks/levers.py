"""How far down a step goes: the lowest peak with and without updates in the backward.

`python -m benchmarks.levers [MODEL ...]`. Each row runs in a process of its own, with
SGD, which has no state, and with AdamW, which has two numbers for each parameter: the
peak of the plain step and update, the lowest peak that lowtide finds for it, what a
step planned for that really takes, by the ledger of allocated bytes, and whether
parameters and optimizer state are those of plain training, bit for bit, after five
steps. What is planned is the function that returns the loss. Rows go to
`benchmarks/results/levers.json` as they come; those of other models stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "levers.json"
MODELS = ("gpt2", "bert", "resnet50", "vit", "alexnet")
OPTIMIZERS = ("SGD", "AdamW")
UPDATES = ("after", "in_backward")
MIB = 1 << 20
STEPS = 5


def run(name: str, optimizer_name: str, update: str) -> dict[str, Any]:
    """One row: real bytes of training steps, plain and at the lowest peak."""
    import torch

    import lowtide
    from lowtide.engine.bits import checksum
    from lowtide.engine.costs.ledger import ledger
    from lowtide.engine.training import arguments_of, default_loss
    from lowtide.models import build

    torch.set_num_threads(1)

    class Training:
        """A model with its optimizer, anew, and the function that is planned."""

        def __init__(self) -> None:
            torch.manual_seed(0)
            target = build(name)
            self.model, self.batch = target.model, target.batch
            of_output, inputs = target.loss or default_loss, arguments_of(self.batch)
            model = self.model
            self.loss: Any = lambda: of_output(inputs.call(model))
            make = getattr(torch.optim, optimizer_name)
            self.optimizer = make(model.parameters(), lr=1e-3)

        def step(self) -> None:
            self.loss().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        def peak_bytes(self) -> int:
            state = list(self.optimizer.state.values())
            given = {"modules": [self.model], "batch": (self.batch, state)}
            return ledger(self.step, **given).peak_bytes

        def bits(self) -> list[int]:
            state = self.optimizer.state_dict()["state"].values()
            values = [*self.model.state_dict().values()]
            values += [v for own in state for v in own.values()]
            return [checksum(v) for v in values if isinstance(v, torch.Tensor)]

    plain = Training()
    for _ in range(STEPS - 1):
        plain.step()
    plain_bytes = plain.peak_bytes()
    expected = plain.bits()
    del plain
    asked: dict[str, Any] = {"update": update, "cache": False}
    planned = Training()
    asked["optimizer"] = planned.optimizer
    own = planned.loss
    planned.loss = lowtide.optimize(own, budget=1, **asked)
    floor = 0
    try:
        planned.step()
    except lowtide.BudgetTooSmallError as error:
        floor = error.floor_bytes
    planned = Training()
    asked["optimizer"] = planned.optimizer
    planned.loss = lowtide.optimize(planned.loss, budget=floor, **asked)
    for _ in range(STEPS - 1):
        planned.step()
    return {
        "model": name,
        "optimizer": optimizer_name,
        "update": update,
        "plain_bytes": plain_bytes,
        "floor_bytes": floor,
        "real_bytes": planned.peak_bytes(),
        "same_bits": planned.bits() == expected,
    }


def main(names: list[str]) -> None:
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for name in names or MODELS:
        for optimizer in OPTIMIZERS:
            for update in UPDATES:
                what = [name, optimizer, update]
                command = [sys.executable, "-m", "benchmarks.levers", "--one", *what]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False
                )
                if done.returncode:
                    sys.exit(f"{', '.join(what)}: {done.stderr[-2000:]}")
                row = json.loads(done.stdout.splitlines()[-1])
                keys = ("model", "optimizer", "update")
                rows = [r for r in rows if [r[key] for key in keys] != what] + [row]
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
                floor = row["floor_bytes"] / row["plain_bytes"]
                real = row["real_bytes"] / row["plain_bytes"]
                print(
                    f"{name:12} {optimizer:6} {update:12} "
                    f"plain {row['plain_bytes'] / MIB:8.1f} MiB, "
                    f"floor {floor:6.1%}, really {real:6.1%}, "
                    f"bits {'equal' if row['same_bits'] else 'differ'}",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(run(*sys.argv[2:5])))
    else:
        main(sys.argv[1:])
