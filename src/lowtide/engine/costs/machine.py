"""What this machine says of itself: its name, its caches, the bytes a process holds."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

_DEFAULT_CACHE_BYTES = 32 << 20
_LARGEST_CACHE_BYTES = 128 << 20


@cache
def device_name(device: torch.device) -> str:
    """The model of a device, such as "AMD EPYC" or "NVIDIA A100-SXM4-80GB"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def cache_bytes(device: torch.device) -> int:
    """Size of the last-level cache, within reason."""
    found = 0
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found = int(getattr(properties, "L2_cache_size", 0))
    else:
        with suppress(OSError):
            for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
                text = entry.read_text().strip()
                scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
                digits = text.rstrip("KM")
                found = max(found, int(digits) * scale if digits.isdigit() else 0)
    return min(found or _DEFAULT_CACHE_BYTES, _LARGEST_CACHE_BYTES)


@dataclass(slots=True)
class Peak:
    """How far a process's bytes rose above where they stood; 0 if it cannot tell."""

    nbytes: int = 0


@contextmanager
def watch_peak() -> Iterator[Peak]:
    """Count the bytes the process takes inside, at their highest.

    Linux keeps the high-water mark and lets a process reset its own; elsewhere the
    answer is 0.
    """
    peak = Peak()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = status_bytes("VmHWM")
    except OSError:
        yield peak
        return
    yield peak
    peak.nbytes = max(0, status_bytes("VmHWM") - before)


def release_free_memory() -> None:
    """Give freed heap pages back, so that what is allocated next is seen to rise."""
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:  # type: ignore[name-defined]
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None  # not glibc


def status_bytes(field: str) -> int:
    """A size that Linux tells of this process, such as VmHWM, its high-water mark.

    Raises `OSError` on other systems. psutil knows neither this mark nor how to reset
    it, so it would not help here.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")
