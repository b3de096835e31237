"""What an exchange between processes costs, by the links of a device description.

Exchanges are never measured: an op that runs on one process alone waits for the others
forever. They are priced as rings, the form that moves the fewest bytes.
"""

from __future__ import annotations

from typing import Any

import torch

from lowtide.engine.capture.call import Call
from lowtide.engine.capture.tensors import tensors_in
from lowtide.engine.costs.devices import Device

_NAMESPACES = ("_c10d_functional", "c10d_functional", "_dtensor")
# What a round through the slowest link takes at least.
_LATENCY_SECONDS = 1e-5


def is_exchange(target: Any) -> bool:
    """Whether an op talks to other processes."""
    return getattr(target, "namespace", "") in _NAMESPACES


def is_wait(target: Any) -> bool:
    """Whether an op waits for an exchange that has begun."""
    return is_exchange(target) and "wait_tensor" in str(target)


def exchange_seconds(call: Call, device: Device) -> float:
    """The time that an exchange takes on a ring of its processes."""
    if is_wait(call.target):
        return 0.0
    size, is_wide = _group(call, device)
    tensors = (*tensors_in(call.args), *tensors_in(call.outputs))
    nbytes = max((t.numel() * t.element_size() for t in tensors), default=0)
    rounds = 2 if "all_reduce" in str(call.target) else 1
    return ring_seconds(rounds * nbytes, size, device, is_wide=is_wide)


def ring_seconds(nbytes: float, size: int, device: Device, *, is_wide: bool) -> float:
    """The time to send so many bytes, less those that a process has, around a ring."""
    if size < 2:
        return 0.0
    link = device.link_bytes_per_second or device.bandwidth_bytes_per_second / 10
    if is_wide:
        link = device.network_bytes_per_second or link / 10
    return _LATENCY_SECONDS + nbytes * (size - 1) / size / link


def _group(call: Call, device: Device) -> tuple[int, bool]:
    """How many processes take part, and whether they are in several machines."""
    texts = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, str)]
    # NOTE(torch>=2.13): captured ops name their group, and only this finds it.
    home: Any = torch.distributed.distributed_c10d
    try:
        group = home._resolve_process_group(texts[-1])
    except (IndexError, LookupError, RuntimeError, ValueError):
        return 2, False
    ranks = torch.distributed.get_process_group_ranks(group)
    near = device.devices_per_machine
    return len(ranks), len({rank // near for rank in ranks}) > 1
