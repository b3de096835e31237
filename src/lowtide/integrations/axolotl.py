"""axolotl: a plugin, switched on in the configuration file.

    plugins:
      - lowtide.integrations.axolotl.LowtidePlugin
    lowtide_budget: 6GiB

Without the last line the budget is that of `LOWTIDE_BUDGET`.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin  # pyright: ignore[reportMissingImports]
from pydantic import BaseModel

from lowtide.integrations.transformers import LowtideCallback


class LowtideArgs(BaseModel):
    """What the plugin adds to the configuration. Default: `LOWTIDE_BUDGET`."""

    lowtide_budget: str | int | None = None


class LowtidePlugin(BasePlugin):
    """Trains under a budget."""

    def get_input_args(self) -> str:
        """Where axolotl finds the configuration's new fields."""
        return f"{__name__}.{LowtideArgs.__name__}"

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        """What is added to the trainer's callbacks."""
        return [LowtideCallback(budget=cfg.lowtide_budget)]
