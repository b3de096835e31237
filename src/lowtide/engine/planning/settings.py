"""What is asked of a planned call, and how its calls run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# How many graphs are planned for one kind of input before its changes are given up on.
MOST_PLANS = 8
MOST_PIECES = 64


@dataclass(frozen=True)
class Settings:
    """A budget, and how to plan for it. `verify_every`: 0 never, n every n-th call."""

    budget: Any
    planner: str = "auto"
    optimizer: torch.optim.Optimizer | None = None
    time_limit: float = 10.0
    cache: bool = True
    updates_in_backward: bool = False
    verify_every: int = 0

    @property
    def is_share(self) -> bool:
        """Whether the budget is a part of what the step needs without lowtide."""
        return str(self.budget).strip().endswith("%")


@dataclass(eq=False)
class Route:
    """How calls with one kind of input run: compiled, or as they are.

    `kind` is the last that ran this way; its sizes may change. If the route `is_fixed`,
    its graphs have to be captured again to run otherwise.
    """

    run: Callable[..., Any] | None = None
    kind: Any = None
    is_whole: bool = True
    is_fixed: bool = False
    num_plans: int = 0
    most_plans: int = MOST_PLANS
