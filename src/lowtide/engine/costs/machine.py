"""What this machine says of itself: its name, its caches, what is allocated on it.

And what torch says of it, and how to keep torch from saying more.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

TORCH_VERSION: str = torch.__version__
_DEFAULT_CACHE_BYTES = 32 << 20
_LARGEST_CACHE_BYTES = 128 << 20
_autograd: Any = torch.autograd
_profiler: Any = import_module("torch._C._profiler")


@cache
def device_name(device: torch.device) -> str:
    """The model of a device, such as "AMD EPYC" or "NVIDIA A100-SXM4-80GB"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    with suppress(OSError):
        return told_by_linux("cpuinfo", "model name")
    return platform.processor() or platform.machine()


@cache
def cache_bytes(device: torch.device) -> int:
    """Size of the last-level cache, within reason."""
    found = 0
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device).L2_cache_size
    else:
        with suppress(OSError):
            for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
                text = entry.read_text().strip()
                scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
                digits = text.rstrip("KM")
                found = max(found, int(digits) * scale if digits.isdigit() else 0)
    return min(found or _DEFAULT_CACHE_BYTES, _LARGEST_CACHE_BYTES)


def gpus() -> list[tuple[str, int]]:
    """The name and the bytes of each GPU that torch can use."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [torch.cuda.get_device_properties(place) for place in range(count)]
    return [(gpu.name, gpu.total_memory) for gpu in found]


def silence_torch() -> None:
    """Let torch log nothing of its own, except what would end the process."""
    torch._logging.set_logs(all=logging.CRITICAL)  # pyright: ignore


def count_allocations(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """What a function returns, and the most bytes it had allocated at once.

    What it allocates is counted where torch's allocator hands it out, so the number is
    the same in every run, however little of it is touched and whatever the operating
    system or the heap keep back.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        torch.cuda.synchronize(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    if not is_counting_possible():
        # The user's profiler is in the way, but only on this thread.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_count_on_cpu, run).result()
    return _count_on_cpu(run)


def _count_on_cpu(run: Callable[[], Any]) -> tuple[Any, int]:
    with torch.no_grad():
        start_counting()
        try:
            result = run()
        finally:
            changes, _ = stop_counting()
    return result, max(accumulate(changes), default=0)


def is_counting_possible() -> bool:
    """Whether no profiler runs on this thread."""
    return not _autograd._profiler_enabled()


def start_counting() -> None:
    """Note what this thread allocates on the CPU from here on.

    NOTE(torch>=2.13,<2.16): only the old profiler hands out single memory events.
    """
    settings = _autograd.ProfilerConfig(
        _autograd.ProfilerState.CPU,
        *(False, True, False, False, False),  # of these only profile_memory
        _profiler._ExperimentalConfig(),
    )
    _set_log_level(_ERRORS_ONLY)
    _autograd._enable_profiler_legacy(settings)


def stop_counting(mark: str = "") -> tuple[list[int], list[int]]:
    """Bytes taken or given back, in order, and how many came before each mark.

    A mark is a `record_function` of that name.
    """
    changes: list[int] = []
    marks: list[int] = []
    threads = _autograd._disable_profiler_legacy()
    _set_log_level(_WARNINGS)
    for thread in threads:
        for event in thread:
            if event.kind() == "memory_alloc":
                changes.append(event.cpu_memory_usage())
            elif mark and event.kind() == "push" and event.name() == mark:
                marks.append(len(changes))
    return changes, marks


# Levels of torch's own log.
_WARNINGS, _ERRORS_ONLY = 1, 2


def _set_log_level(level: int) -> None:
    """Torch would print a line for blocks from before the counting that are freed.

    NOTE(torch>=2.13): there is no other way to it than the variable itself.
    """
    with suppress(OSError, ValueError):
        folder = Path(torch.__file__).parent / "lib"
        library = ctypes.CDLL(str(folder / "libc10.so"))
        current = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
        if current.value in (_WARNINGS, _ERRORS_ONLY):  # as torch starts, or as we set
            current.value = level


def told_by_linux(file: str, field: str) -> str:
    """What stands behind a name in a file of /proc. Raises `OSError` elsewhere."""
    for line in Path("/proc", file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    raise OSError(f"no {field} in /proc/{file}")


def status_bytes(field: str) -> int:
    """A size that Linux tells of this process, such as VmHWM, its high-water mark.

    psutil knows neither this mark nor how to reset it, so it would not help here.
    """
    return int(told_by_linux("self/status", field).split()[0]) * 1024
