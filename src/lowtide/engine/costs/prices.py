"""Costs of calls: from the cache, by measurement, or by estimate."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypedDict

import torch

from lowtide.engine.capture.call import Call
from lowtide.engine.costs.cache import Caching, CostCache, Entry, machine_load
from lowtide.engine.costs.cost import Cost, How
from lowtide.engine.costs.devices import Device, find_device
from lowtide.engine.costs.estimate import estimate
from lowtide.engine.costs.exchange import is_exchange
from lowtide.engine.costs.inputs import input_tensors, output_tensors, size_bytes
from lowtide.engine.costs.machine import device_name
from lowtide.engine.costs.measure import measure_calls
from lowtide.errors import InvalidArgumentError

log = logging.getLogger("lowtide.profile")

# How many ops to measure between two writes to the cache: an interrupted profile
# loses no more than these.
_STORE_EVERY = 32

# What is measured, and how: costs kept under another number are measured anew.
_MEASURED_AS = 2

_LOG_EVERY_SECONDS = 5.0

Progress = Callable[[int, int], None]


class Pricing(TypedDict, total=False):
    """How to price: what `costs` is told, handed on by those who ask it."""

    how: How
    device: str | torch.device | None
    cache: Caching
    progress: Progress | None


def costs(
    calls: Sequence[Call],
    *,
    how: How = "measure",
    device: str | torch.device | None = None,
    cache: Caching = True,
    progress: Progress | None = None,
    room_bytes: int | None = None,
    lent: Sequence[torch.Tensor] = (),
) -> list[Cost]:
    """The cost of each call, in order.

    Args:
        calls: What to cost. Calls with equal signatures are costed once.
        how: "measure" runs every distinct call on the real device; "estimate" runs
            nothing and computes from a device description.
        device: For a measurement, where to run (by default where the calls' tensors
            say). For an estimate, the name of a description such as "a100-80gb" or
            "file.toml:name" (by default this machine's processor).
        cache: Whether measurements are read from and kept on disk; "refresh" measures
            anew what is kept there already.
        progress: Called with the number of distinct calls done and their total. Without
            it they are logged now and then.
        room_bytes: How much a measurement may take, if a single op does not need more.
        lent: Tensors that an op reads which needs more, in place of its own arguments.

    Raises:
        InvalidArgumentError: `how` or `device` is unknown, or the device is not there.
    """
    distinct = {call.signature: call for call in calls}
    progress = progress or _logged_progress()
    if how == "estimate":
        described = find_device(str(device or "cpu"))
        known = {sig: estimate(call, described) for sig, call in distinct.items()}
        progress(len(distinct), len(distinct))
    elif how == "measure":
        real = _real_device(calls, device)
        # No more passes through the cache between two ops than all of them touch: a
        # small step stays in it, and is not swept out.
        numbers = Counter(call.signature for call in calls)
        touched = sum(numbers[s] * size_bytes(call) for s, call in distinct.items())
        room_bytes = 2 * touched if room_bytes is None else min(room_bytes, 2 * touched)
        known = _measured(distinct, real, cache, progress, room_bytes, lent)
    else:
        raise InvalidArgumentError(
            f"how={how!r}", "there is no such way", 'Use "measure" or "estimate"'
        )
    return [known[call.signature] for call in calls]


def _real_device(
    calls: Sequence[Call], device: str | torch.device | None
) -> torch.device:
    if device is None:
        tensors = (t for c in calls for t in (*input_tensors(c), *output_tensors(c)))
        found = next((t.device for t in tensors if t.device.type != "cpu"), None)
        device = found or "cpu"
    try:
        real = torch.device(device)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"device={str(device)!r}",
            "torch knows no such device, and only a real one can be measured",
            'Pass how="estimate" for a described one',
        ) from error
    there = real.type == "cpu" or (real.type == "cuda" and torch.cuda.is_available())
    if not there:
        raise InvalidArgumentError(
            f'how="measure" on device {real}',
            "this machine has no such device",
            'Pass how="estimate" and the name of a described one, e.g. "a100-80gb"',
        )
    return real


def _measured(
    distinct: dict[str, Call],
    device: torch.device,
    cache: Caching,
    progress: Progress,
    room_bytes: int,
    lent: Sequence[torch.Tensor],
) -> dict[str, Cost]:
    begin = time.perf_counter()
    load = machine_load()
    keys = {signature: _key(signature, device) for signature in distinct}
    disk = CostCache() if cache else None
    stored = disk.load(keys.values()) if disk and cache != "refresh" else {}
    known = {
        signature: stored[key].cost
        for signature, key in keys.items()
        if key in stored and not stored[key].is_outdone(load)
    }
    known |= {
        s: estimate(call, _stand_in(device))
        for s, call in distinct.items()
        if is_exchange(call.target)
    }
    missing = [call for s, call in distinct.items() if s not in known]
    num_cached = len(known)
    unsaved: dict[str, Entry] = {}
    failed: list[str] = []

    def save() -> None:
        if disk and unsaved:
            disk.store(unsaved)
        unsaved.clear()

    progress(len(known), len(distinct))
    try:
        for measured in measure_calls(missing, device, room_bytes, lent):
            call = measured.call
            if measured.error:
                failed.append(f"{call.target}: {measured.error}")
                known[call.signature] = estimate(call, _stand_in(device))
            else:
                cost = known[call.signature] = measured.cost
                entry = Entry(cost, len(measured.seconds), load)
                unsaved[keys[call.signature]] = entry
            if len(unsaved) >= _STORE_EVERY:
                save()
            progress(len(known), len(distinct))
    finally:
        save()
    if failed:
        reasons = list(dict.fromkeys(failed))
        log.warning(
            "%d of %d ops cannot run alone, so their times are estimates: %s",
            len(failed),
            len(distinct),
            "; ".join(reasons[:3]) + ("; ..." if len(reasons) > 3 else ""),
        )
    log.info(
        "profile: %d distinct ops, %d measured, %d from the cache, in %.1f s",
        len(distinct),
        len(missing),
        num_cached,
        time.perf_counter() - begin,
    )
    return known


def _logged_progress() -> Progress:
    """For whoever waits for a first step: how far it is, every few seconds."""
    logged_at = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal logged_at
        if time.monotonic() - logged_at >= _LOG_EVERY_SECONDS:
            logged_at = time.monotonic()
            log.info("profile: %d of %d distinct ops are known", done, total)

    return progress


def _key(signature: str, device: torch.device) -> str:
    """Everything that a measured time depends on, as one short word."""
    facts = (
        _MEASURED_AS,
        signature,
        device.type,
        device_name(device),
        torch.__version__,
        torch.get_num_threads() if device.type == "cpu" else 0,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark if device.type == "cuda" else False,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _stand_in(device: torch.device) -> Device:
    """The description used where a measurement failed."""
    if device.type == "cpu":
        return find_device("cpu")
    name, known = device_name(device).lower(), "b200 h200 h100 l40s l4 t4 v100"
    return find_device(next((n for n in known.split() if n in name), "a100-80gb"))
