"""What a step takes outside its planned graphs, watched while it really runs.

A plan is made before the first step has run, when nobody knows yet what the user's own
code will need: a loss outside the model, what it keeps, layers that could not be
captured. So the first step is watched from the end of the planned call to the beginning
of its backward, and the plan is made again if what was seen calls for it. A later step
is watched from end to end and its peak compared with the plan's, which catches whatever
was not foreseen.

What torch's allocator hands out is counted, on this thread. A dispatch mode would see
more, but under one autograd takes other formulas, and the user's numbers would change.
A thread has one profiler, so nothing is watched while the user's runs, and watching
ends before the optimizer's update at the latest.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lowtide.engine.capture.tensors import bytes_in
from lowtide.engine.costs.machine import (
    is_counting_possible,
    start_counting,
    stop_counting,
)

_A_FEW_NUMBERS = 4096
_TURN = "lowtide: the backward begins"
# The observation on each thread.
_RUNNING = threading.local()


@dataclass(frozen=True)
class Outside:
    """Bytes that a step needs outside its planned graphs.

    Attributes:
        room_bytes: Most at once between the forward and the backward, beyond the
            gradients that the backward starts from.
        held_bytes: What of it stays until the backward has ended.
        gradient_bytes: Those of the gradients that the backward started from.
    """

    room_bytes: int
    held_bytes: int
    gradient_bytes: int = 0

    def at(self, gradient_bytes: int) -> Outside:
        """What it takes where the gradients are larger than those seen."""
        growth = gradient_bytes / max(1, self.gradient_bytes)
        if not self.gradient_bytes or growth <= 1:
            return self
        room, held = (int(growth * n) for n in (self.room_bytes, self.held_bytes))
        return Outside(room, held, gradient_bytes)


class Observation:
    """One step, from a planned call to the optimizer's update or the next call.

    Args:
        residents: Tensors that are there before the step begins, in any nesting.
            Without them only what appears is counted.
        is_whole: Whether it begins before the forward.
    """

    def __init__(self, residents: Any = (), *, is_whole: bool = False) -> None:
        self.is_whole = is_whole
        self.resident_bytes = bytes_in(residents)
        self.gradient_bytes = -1
        self.highest_bytes = 0
        self.outside: Outside | None = None
        self.is_running = False
        self.update = register_optimizer_step_pre_hook(lambda *_: self.end())

    def begin(self) -> bool:
        """Watch from here on, if that is possible; what was watched before ends."""
        end_running()
        self.is_running = is_counting_possible()
        if self.is_running:
            _RUNNING.observation = self
            start_counting()
        else:
            self.update.remove()
        return self.is_running

    def turn(self, tangents: Sequence[Any]) -> None:
        """Note that the backward of the planned graph begins."""
        if self.gradient_bytes < 0 and self.is_running:
            self.gradient_bytes = bytes_in(list(tangents))
            with torch.profiler.record_function(_TURN):
                pass

    def end(self) -> None:
        """Stop watching, and see what there was."""
        self.update.remove()
        if not self.is_running:
            return
        self.is_running, _RUNNING.observation = False, None
        changes, marks = stop_counting(_TURN)
        live = list(accumulate(changes, initial=self.resident_bytes))
        self.highest_bytes = max(live)
        if marks and not self.is_whole:
            # The loss and a few other numbers are counted with every step.
            before = live[: marks[0] + 1]
            room, held = (n - self.gradient_bytes for n in (max(before), before[-1]))
            self.outside = Outside(
                room_bytes=room if room > _A_FEW_NUMBERS else 0,
                held_bytes=held if held > _A_FEW_NUMBERS else 0,
                gradient_bytes=self.gradient_bytes,
            )


def end_running() -> None:
    """End what is watched on this thread; torch complains of it at exit otherwise."""
    running: Observation | None = getattr(_RUNNING, "observation", None)
    if running is not None:
        running.end()


atexit.register(end_running)


def residents_of(
    modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, inputs: Any
) -> list[Any]:
    """What is in memory when a step begins."""
    parameters = [p for m in modules for p in m.parameters()]
    buffers = [b for m in modules for b in m.buffers()]
    state = [] if optimizer is None else list(optimizer.state.values())
    return [parameters, buffers, [p.grad for p in parameters], state, inputs]
