"""`gradient_checkpointing_kwargs={"budget": "6 GiB"}`: a budget instead of layers.

Whoever turns checkpointing on, such as the Hugging Face Trainer or TRL, passes these
arguments to the model. The model may be inside another, such as a LoRA wrapper, so what
is planned is the outermost module that is called with it inside.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def take_budgets(modeling: ModuleType) -> None:
    """Have `gradient_checkpointing_enable` of transformers understand a budget."""
    models = modeling.PreTrainedModel
    original = models.gradient_checkpointing_enable

    @functools.wraps(original)
    def enable(
        self: Any,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        given = gradient_checkpointing_kwargs or {}
        if "budget" not in given:
            original(self, gradient_checkpointing_kwargs, *args, **kwargs)
            return
        from lowtide.integrations.roots import plan_when_called

        plan_when_called(self, budget=given["budget"])

    models.gradient_checkpointing_enable = enable
