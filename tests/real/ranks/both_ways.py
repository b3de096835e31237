"""A training run without and with a plan, compared. For scripts run by torchrun."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch


def compare(train: Callable[..., list[Any]], case: Any, seen: dict[str, Any]) -> None:
    """Train both ways, and print what was seen and whether the values are equal."""
    plain = train(case, planned=False, seen=seen)
    ours = train(case, planned=True, seen=seen)
    seen["equal"] = all(torch.equal(p, q) for p, q in zip(plain, ours, strict=True))
    print(json.dumps(seen), flush=True)
