"""The training that `lowtide demo` shows: a small GPT learns to add."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lowtide.engine import api
from lowtide.engine.bits import same_bits
from lowtide.engine.checks.meter import Measurement
from lowtide.engine.checks.verify import Verification
from lowtide.models import build
from lowtide.planners._request import plan as make_plan
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

# Announces a part of the work, and yields what is to be called as it advances.
Stage = Callable[..., AbstractContextManager[Callable[[int, int], None]]]

ALPHABET = "0123456789+=;"
BATCH, SEQUENCE = 16, 64
_PLANNING_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Demo:
    """Both trainings, the plan between them, what was measured and compared of both.

    `losses` has the two losses of each step, `weights` each trained weight's name, both
    with whether they are equal bit for bit.
    """

    step: StepGraph
    plan: Plan
    losses: list[tuple[float, float, bool]]
    weights: dict[str, bool]
    baseline: Measurement
    planned: Measurement
    verification: Verification

    @property
    def num_equal_losses(self) -> int:
        """How many steps had the very same loss."""
        return sum(is_equal for _, _, is_equal in self.losses)

    @property
    def num_equal_weights(self) -> int:
        """How many parameters are, after training, the very same."""
        return sum(self.weights.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "budget_bytes": self.plan.budget_bytes,
            "losses": [loss for _, loss, _ in self.losses],
            "num_steps": len(self.losses),
            "num_equal_losses": self.num_equal_losses,
            "num_weights": len(self.weights),
            "num_equal_weights": self.num_equal_weights,
            "predicted_peak_bytes": self.plan.peak_bytes,
            "predicted_overhead": self.plan.overhead,
            "baseline_peak_bytes": self.baseline.peak_bytes,
            "planned_peak_bytes": self.planned.peak_bytes,
            "baseline_rss_peak_bytes": self.baseline.rss_peak_bytes,
            "planned_rss_peak_bytes": self.planned.rss_peak_bytes,
            "baseline_seconds": self.planned.baseline_seconds,
            "planned_seconds": self.planned.seconds,
        }

    @property
    def ok(self) -> bool:
        same = [*self.weights.values(), *(same for _, _, same in self.losses)]
        return all(same) and self.verification.ok


def run_demo(budget: str | int, num_steps: int, stage: Stage) -> Demo:
    """Train from the same start with and without a budget, and measure both."""
    batches = make_batches(num_steps)
    inputs, targets = batches[0]
    loss = partial(functional.cross_entropy, target=targets)
    plain, planned = make_model(), make_model()
    with stage("training without a budget") as advance:
        before = train(plain, batches, advance)
    weights = {name: p.detach().clone() for name, p in plain.named_parameters()}
    with stage("capturing the step and timing its ops") as advance:
        step = api.profile(plain, inputs, loss=loss, name="demo", progress=advance)
    with stage("planning", limit_seconds=_PLANNING_SECONDS):
        plan = make_plan(step, budget=budget, time_limit=_PLANNING_SECONDS)
    api.apply(planned, plan)
    with stage("training with the plan") as advance:
        after = train(planned, batches, advance)
    same = {n: same_bits(weights[n], p.detach()) for n, p in planned.named_parameters()}
    with stage("measuring both") as advance:
        baseline = api.measure(plain, inputs, loss=loss, steps=3)
        advance(1, 2)
        measured = api.measure(planned, inputs, loss=loss, steps=3)
    with stage("comparing one step, bit by bit"):
        compared = api.verify(plain, inputs, plan=plan, loss=loss, measured=False)
    pairs = zip(before, after, strict=True)
    losses = [(float(a), float(b), same_bits(a, b)) for a, b in pairs]
    return Demo(step, plan, losses, same, baseline, measured, compared)


def make_model() -> nn.Module:
    """A GPT of four blocks with dropout, random but the same every time."""
    sizes = {"sequence": SEQUENCE, "vocab": len(ALPHABET)}
    sizes |= {"layers": 4, "width": 128, "heads": 4}
    return build("tiny_gpt", batch=1, dropout=0.1, seed=0, **sizes).model


def make_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Sums such as `37+58=95;`, one after the other, cut into samples."""
    generator = torch.Generator().manual_seed(0)
    batches: list[tuple[Tensor, Tensor]] = []
    for _ in range(count):
        text = torch.tensor([_sums(generator) for _ in range(BATCH)])
        batches.append((text[:, :-1].contiguous(), text[:, 1:].contiguous()))
    return batches


def _sums(generator: torch.Generator) -> list[int]:
    text = ""
    while len(text) <= SEQUENCE:
        a, b = torch.randint(100, (2,), generator=generator).tolist()
        text += f"{a}+{b}={a + b};"
    return [ALPHABET.index(c) for c in text[: SEQUENCE + 1]]


def train(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    advance: Callable[[int, int], None],
) -> list[Tensor]:
    """An ordinary training loop, which knows nothing of lowtide; returns its losses."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[Tensor] = []
    for number, (inputs, targets) in enumerate(batches, 1):
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        advance(number, len(batches))
    return losses
