"""What a step really needs: bytes the allocator gave out, bytes the system saw, time.

On the CPU no allocator keeps a high-water mark, so bytes are counted from the storages
that come and go while the step runs under a dispatch mode, and the operating system's
own mark (`VmHWM`) is read in a fresh process whose allocator returns every large block
at once. On CUDA the caching allocator's statistics are used (untested on a GPU so far).
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lowtide.engine.costs.machine import status_bytes
from lowtide.step.plan import Plan

Step = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured training step.

    Attributes:
        peak_bytes: Most bytes allocated at once, residents included.
        rss_peak_bytes: Most bytes that the operating system saw above the state before
            the step (CPU; 0 where it was not measured).
        seconds: Median time of a step.
        samples: The time of each step.
        baseline_seconds: Median time of the unplanned step, run in turns with it; the
            same as `seconds` if the model is not planned.
        resident_bytes: Bytes allocated before the step began.
        live_bytes: Allocated bytes after each allocation and release.
    """

    peak_bytes: int
    rss_peak_bytes: int
    seconds: float
    samples: tuple[float, ...]
    baseline_seconds: float
    resident_bytes: int
    live_bytes: tuple[int, ...] = field(default=(), repr=False)

    @property
    def ratio(self) -> float:
        """Time as a multiple of the unplanned step's."""
        return self.seconds / self.baseline_seconds if self.baseline_seconds else 1.0


def clear_gradients(modules: list[nn.Module]) -> None:
    """Forget all gradients, as `zero_grad` does."""
    for module in modules:
        module.zero_grad(set_to_none=True)


class Allocated(NamedTuple):
    """What one step allocated. What only a ledger can tell is empty on a GPU."""

    peak_bytes: int
    resident_bytes: int
    live_bytes: tuple[int, ...] = ()
    activation_peak_bytes: int | None = None


def allocated_peak(step: Step, modules: list[nn.Module], batch: Any) -> Allocated:
    """Run one step and tell what it allocated."""
    clear_gradients(modules)
    gc.collect()
    if _on_cuda(modules):
        torch.cuda.reset_peak_memory_stats()
        resident = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return Allocated(torch.cuda.max_memory_allocated(), resident)
    from lowtide.engine.costs.ledger import ledger

    found = ledger(step, modules=modules, batch=batch)
    return Allocated(
        found.peak_bytes,
        found.resident_bytes,
        found.live_bytes,
        found.activation_peak_bytes,
    )


def timed(
    steps: list[Step], modules: list[nn.Module], repeats: int
) -> list[list[float]]:
    """Seconds of each step, the steps taking turns."""
    samples: list[list[float]] = [[] for _ in steps]
    for _ in range(repeats):
        for step, into in zip(steps, samples, strict=True):
            clear_gradients(modules)
            _wait(modules)
            start = time.perf_counter()
            step()
            _wait(modules)
            into.append(time.perf_counter() - start)
    clear_gradients(modules)
    return samples


def median(values: list[float]) -> float:
    """The middle of the values."""
    return statistics.median(values)


def rss_peak(step: Step, modules: list[nn.Module]) -> int:
    """Most bytes that the system saw during the step above the state before it.

    Meaningful in a process started with `MALLOC_ENVIRONMENT`, and after a first step
    has loaded and compiled everything. 0 where the system does not tell.
    """
    clear_gradients(modules)
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = status_bytes("VmRSS")
        step()
        return max(0, status_bytes("VmHWM") - before)
    except OSError:
        return 0


MALLOC_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def rss_peak_in_child(
    model: nn.Module, batch: Any, loss: Any, plan: Plan | None
) -> int | None:
    """`rss_peak` of one step in a fresh process, or `None` if it cannot go there.

    The model, batch and loss travel by pickle; what is defined in the main script or in
    a notebook cannot.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.pt"
        planned = model.__dict__.pop("_compiled_call_impl", None)
        try:
            torch.save((model, batch, loss), job)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        finally:
            if planned is not None:
                model.__dict__["_compiled_call_impl"] = planned
        if plan is not None:
            plan.save(Path(folder) / "plan.json")
        result = subprocess.run(
            [sys.executable, "-m", "lowtide.engine.meter_child", folder],
            env={**os.environ, **MALLOC_ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        return None
    return int(json.loads(result.stdout.splitlines()[-1])["rss_peak_bytes"])


def _on_cuda(modules: list[nn.Module]) -> bool:
    return any(p.is_cuda for m in modules for p in m.parameters())


def _wait(modules: list[nn.Module]) -> None:
    if _on_cuda(modules):
        torch.cuda.synchronize()


@contextmanager
def preserved(modules: list[nn.Module]):  # type: ignore[no-untyped-def]
    """Put gradients, buffers and random numbers back afterwards.

    Gradients are out of reach meanwhile: a backward would add to them in place.
    """
    gradients = [(p, p.grad) for m in modules for p in m.parameters()]
    clear_gradients(modules)
    buffers = [(b, b.detach().clone()) for m in modules for b in m.buffers()]
    state = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        torch.set_rng_state(state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
