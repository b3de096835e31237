"""The training that `lowtide demo` shows: a small GPT learns to add."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lowtide.models import build

ALPHABET = "0123456789+=;"
BATCH, SEQUENCE = 16, 64


@dataclass(frozen=True)
class Run:
    """What one training run gave: a loss for each step, its time, the last weights."""

    losses: tuple[Tensor, ...]
    seconds: tuple[float, ...]
    weights: dict[str, Tensor]

    @property
    def median_seconds(self) -> float:
        """Of a step; the first one plans and is not counted."""
        ordered = sorted(self.seconds[1:] or self.seconds)
        return ordered[len(ordered) // 2]


@dataclass(frozen=True, eq=False)
class NextCharacter:
    """The loss of a batch: how surprising each next character is."""

    targets: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """The mean cross entropy."""
        return functional.cross_entropy(scores, self.targets)


def make_model(seed: int = 0) -> nn.Module:
    """A GPT of four blocks with dropout, random but the same every time."""
    return build(
        "tiny_gpt",
        batch=1,
        sequence=SEQUENCE,
        vocab=len(ALPHABET),
        layers=4,
        width=128,
        heads=4,
        dropout=0.1,
        seed=seed,
    ).model


def make_batches(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Sums such as `37+58=95;`, one after the other, cut into samples."""
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(count):
        rows = [_sums(generator) for _ in range(BATCH)]
        text = torch.tensor(rows)
        found.append((text[:, :-1].contiguous(), text[:, 1:].contiguous()))
    return found


def _sums(generator: torch.Generator) -> list[int]:
    text = ""
    while len(text) <= SEQUENCE:
        a, b = torch.randint(100, (2,), generator=generator).tolist()
        text += f"{a}+{b}={a + b};"
    return [ALPHABET.index(c) for c in text[: SEQUENCE + 1]]


def train(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], advance: Any = None
) -> Run:
    """An ordinary training loop; nothing in it knows of lowtide."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[Tensor] = []
    seconds: list[float] = []
    for number, (inputs, targets) in enumerate(batches, 1):
        started = time.perf_counter()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
        losses.append(loss.detach())
        if advance is not None:
            advance(number, len(batches))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Run(tuple(losses), tuple(seconds), weights)


def same_bits(first: Run, second: Run) -> tuple[int, int]:
    """How many losses, and how many final weights, are equal bit for bit."""
    losses = zip(first.losses, second.losses, strict=True)
    return (
        sum(torch.equal(a, b) for a, b in losses),
        sum(torch.equal(w, second.weights[n]) for n, w in first.weights.items()),
    )
