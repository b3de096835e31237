"""What a step really needs: bytes the allocator gave out, bytes the system saw, time.

On the CPU no allocator keeps a high-water mark, so bytes are counted from the storages
that come and go while the step runs under a dispatch mode, and the operating system's
own mark (`VmHWM`) is read in a fresh process whose allocator returns every large block
at once. On CUDA the caching allocator's statistics are used (untested on a GPU so far).
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from lowtide.engine.costs.ledger import LedgerTimeline, ledger
from lowtide.engine.costs.machine import status_bytes
from lowtide.engine.forms.draws import streams_put_back
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


def allocated_peak(step: Step, modules: list[nn.Module], batch: Any) -> LedgerTimeline:
    """Run one step and tell what it allocated; on a GPU only the peak is known."""
    clear_gradients(modules)
    gc.collect()
    if not _on_cuda(modules):
        return ledger(step, modules=modules, batch=batch)
    torch.cuda.reset_peak_memory_stats()
    resident = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return LedgerTimeline(peak, peak - resident, resident, ())


def timed(
    steps: list[Step], modules: list[nn.Module], repeats: int
) -> list[list[float]]:
    """Seconds of each step, the steps taking turns."""
    samples: list[list[float]] = [[] for _ in steps]
    wait = torch.cuda.synchronize if _on_cuda(modules) else lambda: None
    for _ in range(repeats):
        for step, into in zip(steps, samples, strict=True):
            clear_gradients(modules)
            wait()
            start = time.perf_counter()
            step()
            wait()
            into.append(time.perf_counter() - start)
    clear_gradients(modules)
    return samples


def measure_steps(
    steps: list[Step], modules: list[nn.Module], batch: Any, repeats: int
) -> Measurement:
    """Peak and time of the first step, which takes turns with the last."""
    found = allocated_peak(steps[0], modules, batch)
    samples = timed(steps, modules, repeats)
    return Measurement(
        peak_bytes=found.peak_bytes,
        rss_peak_bytes=0,
        seconds=median(samples[0]),
        samples=tuple(samples[0]),
        baseline_seconds=median(samples[-1]),
        resident_bytes=found.resident_bytes,
        live_bytes=found.live_bytes,
    )


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
        found = in_fresh_process("lowtide.engine.checks.meter", folder)
    return int(found) if found else None


def in_fresh_process(module: str, *words: str, seconds: float | None = None) -> str:
    """The last line that a module prints as a program of its own; nothing if it fails.

    Its allocator gives every large block back at once, so `rss_peak` means something.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            env={**os.environ, **MALLOC_ENVIRONMENT},
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds,
        )
    except subprocess.SubprocessError:
        return ""
    return "".join(done.stdout.splitlines()[-1:])


def _on_cuda(modules: list[nn.Module]) -> bool:
    return any(p.is_cuda for m in modules for p in m.parameters())


@contextmanager
def preserved(modules: list[nn.Module]) -> Iterator[None]:
    """Put gradients, buffers and random numbers back afterwards.

    Gradients are out of reach meanwhile: a backward would add to them in place.
    """
    gradients = [(p, p.grad) for m in modules for p in m.parameters()]
    clear_gradients(modules)
    buffers = [(b, b.detach().clone()) for m in modules for b in m.buffers()]
    try:
        with streams_put_back():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _measure_in_child(folder: str) -> None:
    """In the fresh process: load the job, run one step to warm up, measure the next."""
    from lowtide import apply
    from lowtide.engine.training import arguments_of, training_step
    from lowtide.models._libraries import torchvision_models

    # Unpickling imports what the model is made of; torchvision may need help with that.
    if find_spec("torchvision") is not None:
        torchvision_models()
    model, batch, loss = torch.load(Path(folder) / "job.pt", weights_only=False)
    path = Path(folder) / "plan.json"
    if path.exists():
        apply(model, Plan.load(path))
    step = training_step(model, loss, arguments_of(batch))
    step()
    print(rss_peak(step, [model]))


if __name__ == "__main__":
    _measure_in_child(sys.argv[1])
