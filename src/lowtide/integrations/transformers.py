"""The Hugging Face Trainer: `Trainer(..., callbacks=[LowtideCallback(budget=...)])`.

TRL's trainers are Trainers too.
"""

from __future__ import annotations

from typing import Any

from lowtide.integrations.roots import plan
from lowtide.models._libraries import beside_torchvision

TrainerCallback = beside_torchvision("transformers").TrainerCallback


class LowtideCallback(TrainerCallback):
    """Plans the model that a Trainer trains, inside of DDP if there is one.

    Args:
        budget: As in `lowtide.optimize`. Default: `LOWTIDE_BUDGET`.
        options: The other arguments of `lowtide.optimize`, such as `planner`.
    """

    def __init__(self, budget: str | int | None = None, **options: Any) -> None:
        self.options = {"budget": budget, **options}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Plan at the first step, with the optimizer that is there by now."""
        plan(given["model"], given["optimizer"], **self.options)
