"""Lightning: a callback for its Trainer, one for Fabric, and their factories.

With `LOWTIDE_BUDGET` in the environment, Lightning finds the callbacks by itself,
through the entry points of this package.
"""

from __future__ import annotations

import os
from typing import Any

from lowtide.engine.call.methods import is_trained_by_method
from lowtide.engine.notices import warn
from lowtide.errors import NoTrainingGraphError
from lowtide.integrations.roots import plan, plan_when_called
from lowtide.models._libraries import beside_torchvision

Callback = beside_torchvision("lightning.pytorch").Callback


class LowtideCallback(Callback):
    """Plans the `training_step` of the module that a Trainer fits.

    Args:
        budget: As in `lowtide.optimize`. Default: `LOWTIDE_BUDGET`.
        options: The other arguments of `lowtide.optimize`, such as `planner`.
    """

    def __init__(self, budget: str | int | None = None, **options: Any) -> None:
        self.options = {"budget": budget, **options}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Plan at the first step, with the optimizers that are there by now."""
        try:
            plan(pl_module, *trainer.optimizers, **self.options)
        except NoTrainingGraphError as error:
            warn(str(error))


class LowtideFabricCallback:
    """Plans the modules that a Fabric sets up, when they are trained."""

    def __init__(self, budget: str | int | None = None, **options: Any) -> None:
        self.options = {"budget": budget, **options}

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Plan a Lightning module's `training_step`, or else the call of the module."""
        plan_when_called(module.module, **self.options)
        if is_trained_by_method(module.module):
            plan(module.module, **self.options)


def trainer_callbacks() -> list[Any]:
    """What Lightning's Trainer adds to its callbacks."""
    return [LowtideCallback()] if os.environ.get("LOWTIDE_BUDGET") else []


def fabric_callbacks() -> list[Any]:
    """What Fabric adds to its callbacks."""
    return [LowtideFabricCallback()] if os.environ.get("LOWTIDE_BUDGET") else []
