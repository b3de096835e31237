"""Whether a machine keeps what lowtide promises: bits, budgets and predictions.

Small models, each for another reason, are trained for one step with and without a plan.
The rows say how a device does on which lowtide was never tried, and are worth sending
to those who wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lowtide import models, planners
from lowtide.engine.api import profile, verify
from lowtide.engine.training import default_loss
from lowtide.errors import LowtideError, MissingPackageError

# What it is about, the model and its options.
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "products": ("mlp", {"batch": 1024, "width": 64}),
    "attention": ("tiny_gpt", {"batch": 8}),
    "dropout": ("tiny_gpt", {"batch": 8, "dropout": 0.1}),
    "16 bits": ("tiny_gpt", {"batch": 8, "dtype": "bfloat16"}),
    "convolutions": ("unet", {"batch": 2, "image": 64, "width": 8}),
    "batch norm": ("resnet18", {"batch": 8, "image": 64}),
    "a loss inside": ("gpt2", {"batch": 2, "layers": 2, "width": 96, "vocab": 999}),
}
BUDGETS = ("between", "lowest")
_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One model under one budget.

    `budget` is the lowest peak found, or the middle between that and the peak without
    a plan. `differences` are those of `Verification`; `failure` says why there is none.
    """

    case: str
    model: str
    device: str
    budget: str
    failure: str = ""
    differences: tuple[str, ...] = ()
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    predicted_overhead: float = 0.0
    measured_overhead: float = 0.0

    @property
    def ok(self) -> bool:
        """The same bits, within the budget."""
        return not self.failure and not self.differences


def devices() -> list[str]:
    """Where to try: the accelerator if there is one, and the processor."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else [accelerator.type, "cpu"]


def trials(
    advance: Callable[[int, int], None] = lambda done, total: None,
    cases: dict[str, tuple[str, dict[str, Any]]] = _CASES,
) -> Iterator[Trial]:
    """Try every case on every device; those of missing libraries are left out."""
    asked = [(device, case) for device in devices() for case in cases]
    for number, (device, case) in enumerate(asked):
        advance(number, len(asked))
        model, options = cases[case]
        named: dict[str, Any] = {"case": case, "model": model, "device": device}
        try:
            yield from _of_model(named, {"device": device, **options})
        except MissingPackageError:
            continue
        except (LowtideError, RuntimeError) as error:
            yield Trial(**named, budget="", failure=f"{type(error).__name__}: {error}")


def _of_model(named: dict[str, Any], options: dict[str, Any]) -> Iterator[Trial]:
    example = models.build(named["model"], **options)
    net, loss = example.model, example.loss or default_loss

    def train(*args: Any, **kwargs: Any) -> torch.Tensor:
        return loss(net(*args, **kwargs))

    step = profile(train, example.batch)
    lowest = step.floor_bytes
    limits = ((lowest + step.eager_peak_bytes) // 2, lowest)
    for budget, limit in zip(BUDGETS, limits, strict=True):
        plan = planners.load("auto").plan(step, limit, time_limit=_SECONDS)
        found = verify(train, example.batch, plan=plan)
        assert found.measured is not None
        yield Trial(
            **named,
            budget=budget,
            differences=found.differences,
            predicted_peak_bytes=plan.peak_bytes,
            measured_peak_bytes=found.measured_peak_bytes,
            predicted_overhead=plan.overhead,
            measured_overhead=found.measured.ratio - 1,
        )
