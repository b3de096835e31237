"""Train a GPT on this repository's license, without lowtide and in 55 % of the memory.

    python examples/train_gpt.py

Both runs start from the same weights and draw the same dropout masks. At the end the
script compares every weight bit by bit.
"""

import argparse
import copy
from pathlib import Path

import torch
from torch.nn import functional

import lowtide
from lowtide.models import build

TEXT = (Path(__file__).parents[1] / "LICENSE").read_text()
LETTERS = sorted(set(TEXT))
SEQUENCE = 64


def batches(count: int, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return random pieces of the text, each with the same piece one letter later."""
    generator = torch.Generator().manual_seed(0)
    data = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    found = []
    for _ in range(count):
        starts = torch.randint(len(data) - SEQUENCE - 1, (batch,), generator=generator)
        rows = torch.stack([data[s : s + SEQUENCE + 1] for s in starts.tolist()])
        found.append((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
    return found


def train(model: torch.nn.Module, data: list) -> list[torch.Tensor]:
    """Train in an ordinary loop, and return the losses."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for inputs, targets in data:
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="55%")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    sizes = {"layers": 3, "width": 96, "heads": 4, "dropout": 0.1}
    model = build("tiny_gpt", vocab=len(LETTERS), sequence=SEQUENCE, **sizes).model
    planned = copy.deepcopy(model)
    lowtide.optimize(planned, budget=options.budget)

    data = batches(options.steps, options.batch)
    plain_losses, planned_losses = train(model, data), train(planned, data)
    for step, (a, b) in enumerate(zip(plain_losses, planned_losses, strict=True), 1):
        print(f"step {step:2}  loss {a.item():.6f}  with the budget {b.item():.6f}")
    print(lowtide.planned(planned).plans[0])

    pairs = zip(model.parameters(), planned.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    print("every weight is equal, bit by bit")


if __name__ == "__main__":
    main()
