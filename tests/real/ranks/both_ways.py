"""A training run without and with a plan, compared. For scripts run by torchrun."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lowtide.engine.bits import same_bits


def compare(train: Callable[..., list[Any]], case: Any, seen: dict[str, Any]) -> None:
    """Train both ways, and print what was seen and whether the values are equal."""
    plain = train(case, planned=False, seen=seen)
    ours = train(case, planned=True, seen=seen)
    seen["equal"] = len(plain) == len(ours) and all(map(same_bits, plain, ours))
    print(json.dumps(seen), flush=True)
