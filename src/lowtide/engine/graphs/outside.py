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

The counter cannot tell whose bytes it counts. If another model gets gradients
meanwhile, some are that model's, and not what the step needs.
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
from lowtide.engine.costs.living import living
from lowtide.engine.costs.machine import (
    is_counting_possible,
    start_counting,
    stop_counting,
)

_A_FEW_NUMBERS = 4096
_MARK = "lowtide: the backward begins or has ended"
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
        modules: What the planned call trains.
        residents: Tensors that are there before the step begins, in any nesting.
            Without them only what appears is counted.
        is_whole: Whether it begins before the forward.

    Attributes:
        is_shared: Whether another model was trained meanwhile.
    """

    def __init__(
        self, modules: Sequence[nn.Module], residents: Any = (), *, is_whole: bool
    ) -> None:
        self.is_whole, self.is_shared = is_whole, False
        self.others = parameters_of_others(modules)
        self.gradients_before = self.gradients_now()
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
            self.look_at_others()
            _mark()

    def note_end(self) -> None:
        """Have it noted when the pass ends that this backward is part of.

        Another model that gets its gradients in the same pass is trained in the same
        step; one that gets them later is not.
        """
        if self.gradient_bytes >= 0:
            engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            engine.queue_callback(self.note_end_of_pass)

    def note_end_of_pass(self) -> None:
        if self.is_running:
            self.look_at_others()
            _mark()

    def look_at_others(self) -> None:
        """Note whether another model has got gradients since this was asked last."""
        self.is_shared |= self.others_were_trained()

    def others_were_trained(self) -> bool:
        before, self.gradients_before = self.gradients_before, self.gradients_now()
        return before != self.gradients_before

    def gradients_now(self) -> list[tuple[int, int] | None]:
        """Those of other models."""
        return list(map(_gradient_of, self.others))

    def end(self) -> None:
        """Stop watching, and see what there was."""
        self.update.remove()
        if not self.is_running:
            return
        is_overtaken = self.is_shared or self.others_were_trained()
        self.others.clear()
        self.is_running, _RUNNING.observation = False, None
        changes, marks = stop_counting(_MARK)
        live = list(accumulate(changes, initial=self.resident_bytes))
        if is_overtaken:
            live = live[: marks[-1] + 1 if marks else 1]  # the rest is the other's step
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


def _mark() -> None:
    with torch.profiler.record_function(_MARK):
        pass


def end_running() -> None:
    """End what is watched on this thread; torch complains of it at exit otherwise."""
    running: Observation | None = getattr(_RUNNING, "observation", None)
    if running is not None:
        running.end()


atexit.register(end_running)


def parameters_of_others(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """The parameters in this process of models that none of these is a part of."""
    own = {id(m) for root in modules for m in root.modules()}
    around = [m for m in living(nn.Module) if id(m) not in own]
    found = True
    while found:
        found = [m for m in around if any(id(c) in own for c in m.children())]
        own.update(map(id, found))
        around = [m for m in around if id(m) not in own]
    known = {id(p) for m in living(nn.Module) if id(m) in own for p in m.parameters()}
    return [p for p in living(nn.Parameter) if p.is_leaf and id(p) not in known]


def _gradient_of(parameter: nn.Parameter) -> tuple[int, int] | None:
    """What tells a gradient from another, and from itself before it was added to."""
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


def residents_of(
    modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, inputs: Any
) -> list[Any]:
    """What is in memory when a step begins."""
    parameters = [p for m in modules for p in m.parameters()]
    buffers = [b for m in modules for b in m.buffers()]
    state = [] if optimizer is None else list(optimizer.state.values())
    return [parameters, buffers, [p.grad for p in parameters], state, inputs]
