"""What torch says of this machine, and how to keep it from saying more."""

from __future__ import annotations

import logging

import torch

TORCH_VERSION: str = torch.__version__


def gpus() -> list[tuple[str, int]]:
    """The name and the bytes of each GPU that torch can use."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [torch.cuda.get_device_properties(place) for place in range(count)]
    return [(gpu.name, gpu.total_memory) for gpu in found]


def silence_torch() -> None:
    """Let torch log nothing of its own, except what would end the process."""
    torch._logging.set_logs(all=logging.CRITICAL)  # pyright: ignore
