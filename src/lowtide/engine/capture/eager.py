"""Where capture computes otherwise than the same step without it, and how it is undone.

NOTE(torch>=2.13,<2.14): capture replaces `dropout` by `native_dropout` on every device.
"""

from __future__ import annotations

import torch
from torch import fx

_DROPOUT_BACKWARD = torch.ops.aten.native_dropout_backward.default


def compute_as_eager(joint: fx.GraphModule) -> None:
    """Change a joint graph so that its numbers are those of the uncaptured step.

    Eager dropout on the CPU multiplies by a noise of the input's type, in the backward
    too, so its scale is rounded to that type. The captured op multiplies by the scale
    as it is, which differs in 16 bits.
    """
    for node in joint.graph.nodes:
        if node.target is not _DROPOUT_BACKWARD:
            continue
        gradient, mask, scale = node.args
        value = node.meta["val"]
        if value.device.type == "cpu" and isinstance(scale, float):
            rounded = torch.tensor(scale, dtype=value.dtype, device="cpu")
            node.args = (gradient, mask, rounded.item())
