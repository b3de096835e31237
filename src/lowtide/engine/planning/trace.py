"""Run a training step on tensors without bytes, to see its graphs before it runs.

The user's code runs once more than in training, so it runs in a copy of the process
(`aside`), and only what was seen comes back: the step, and the calls its ops make.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from lowtide.engine.capture.formulas import VALUES_DECIDE
from lowtide.engine.capture.questions import Answers, Place
from lowtide.engine.capture.record import Recorder, Recording
from lowtide.engine.graphs.compile import compiled
from lowtide.engine.graphs.rewrite import keep_everything
from lowtide.engine.graphs.watch import Watch
from lowtide.engine.planning.aside import run_aside
from lowtide.engine.planning.prepare import Unpriced, unpriced
from lowtide.engine.ranks.agreement import is_sharded
from lowtide.engine.training import Inputs, Loss, default_loss
from lowtide.errors import CaptureError, LowtideError, causes_of, places_of

log = logging.getLogger("lowtide.run")


def look(
    function: Callable[..., Any],
    inputs: Inputs,
    *,
    modules: Sequence[nn.Module],
    loss: Loss = default_loss,
    name: str = "step",
    answers: Answers | None = None,
    may_be_here: bool = True,
) -> list[tuple[Unpriced, int]]:
    """What `loss(function(...)).backward()` does, seen on fake tensors.

    That is one step of all its graphs, which runs once. If a graph runs several times,
    all its runs share one order of ops, which a schedule cannot say: then it is each
    graph as a step of its own, and how often it runs. Nothing is computed here, and
    nothing changes that the step would change but `answers`, to what code is to be told
    that asks whether it is being compiled.

    Raises:
        CaptureError: there is no loss to differentiate, or the step cannot run without
            values, or not in a copy of this process where it may not be here.
    """
    if is_sharded(modules):
        raise CaptureError(
            "its parameters are sharded over processes, which a dry run would disturb",
            fix="Use lowtide.optimize, which plans such a model piece by piece",
        )

    answers = answers or Answers()

    def record(fullgraph: bool = False) -> Recording:
        return _recording(function, inputs, modules, loss, answers, fullgraph)

    def record_told_otherwise(seen: Recording) -> Recording:
        """One graph, if what code asks is all that cuts it; else what was seen."""
        told = set(answers.yes)
        try:
            return record(fullgraph=True)
        except Exception as error:
            log.info("it is several graphs: %s", error)
            answers.yes = told
            return seen

    def work() -> tuple[tuple[set[Place], set[Place]], list[tuple[Unpriced, int]]]:
        try:
            recording = answers.capture(record, VALUES_DECIDE)
        except LowtideError:
            raise
        except Exception as error:
            raise _failed_capture(error) from None
        if len(recording.pieces) != 1 and answers.asked:
            recording = record_told_otherwise(recording)
        if not recording.pieces:
            raise CaptureError(
                "torch.compile captured nothing of it",
                fix="Use lowtide.optimize, which runs what cannot be captured as it is",
            )
        told, visits = (answers.yes, answers.by_value), recording.visits
        if max(visits.values()) == 1:
            return told, [(unpriced(recording, name=name), 1)]
        return told, [(unpriced(p), visits[id(p)]) for p in recording.pieces]

    (answers.yes, answers.by_value), seen = run_aside(work, may_be_here)
    return seen


def _failed_capture(error: Exception) -> CaptureError:
    """What went wrong, without the advice that torch wraps around it."""
    text = " ".join(str(error).split())
    if isinstance(error, VALUES_DECIDE):
        return CaptureError(
            f"values decide its shapes or its branches ({text})",
            fix="Keep shapes fixed, as with torch.where in place of a mask, or use "
            "lowtide.optimize, which plans such a model piece by piece as it runs",
        )
    end = r"(?= Hint| Developer|$)"
    explained = re.search(rf"got (\w+(?:Error|Exception)\(.*?\)){end}", text)
    explained = explained or re.search(rf"Explanation: (.*?){end}", text)
    reason = explained[1] if explained else f"{type(error).__name__}: {text}"
    return CaptureError(
        reason if len(reason) <= 400 else reason[:400] + " ...",
        fix="Check that loss(model(batch)).backward() runs without lowtide",
        passed=tuple(place for e in causes_of(error) for place in places_of(e)),
    )


def _recording(
    function: Callable[..., Any],
    inputs: Inputs,
    modules: Sequence[nn.Module],
    loss: Loss,
    answers: Answers,
    fullgraph: bool,
) -> Recording:
    """Run the step on fakes, which replace parameters and buffers meanwhile."""
    mode = _fake_mode(modules, inputs)
    recorder = Recorder()
    watch = Watch(around=recorder.visit, answers=answers)
    with _faked(modules, mode), mode:
        fakes: Inputs = pytree.tree_map(lambda v: _fake(v, mode), inputs)
        call = compiled(function, keep_everything, watch, fullgraph=fullgraph)
        same = zip(pytree.tree_leaves(fakes), pytree.tree_leaves(inputs), strict=True)
        with recorder, answers.knowing(same):
            result = loss(fakes.call(call))
            _check_loss(result)
            result.backward()
    return recorder.recording


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        problem = f"the loss is a {type(loss).__name__}, not a tensor"
        fix = "Return the tensor, without .item() or float()"
    elif not torch.is_grad_enabled():
        problem = "gradients are turned off"
        fix = "Call it outside of torch.no_grad()"
    elif not loss.requires_grad:
        problem = "the loss does not depend on anything that requires a gradient"
        fix = "Let at least one parameter or input require a gradient"
    elif loss.numel() != 1:
        problem = f"the loss has the shape {tuple(loss.shape)}, not that of one number"
        fix = "Reduce it, as with loss.mean()"
    else:
        return
    raise CaptureError(problem, fix=fix)


def _fake_mode(modules: Sequence[nn.Module], inputs: Inputs) -> FakeTensorMode:
    """The mode of the fake tensors already there, or a new one."""
    values = [p for m in modules for p in m.parameters()] + pytree.tree_leaves(inputs)
    modes = (v.fake_mode for v in values if isinstance(v, FakeTensor))
    return next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return mode.from_tensor(value, static_shapes=True)


@contextmanager
def _faked(modules: Sequence[nn.Module], mode: FakeTensorMode) -> Iterator[None]:
    """Put fakes in place of the modules' parameters and buffers, then put them back.

    Whatever the step sets on a module is undone too: it would be made of fakes.
    """
    undo: list[tuple[dict[str, Any], dict[str, Any]]] = []
    known: dict[int, Any] = {}
    # Of a model that is fake already, the run leaves gradients in the model itself.
    gradients = [(p, p.grad) for m in modules for p in m.parameters()]
    try:
        for module in (m for root in modules for m in root.modules()):
            tables = (module._parameters, module._buffers)
            undo += [(t, dict(t)) for t in (module.__dict__, *tables)]
            for table in tables:
                for name, value in table.items():
                    if id(value) not in known:
                        known[id(value)] = _fake(value, mode)
                    table[name] = known[id(value)]
        yield
    finally:
        for table, before in reversed(undo):
            for name in table.keys() - before.keys():
                del table[name]
            table.update(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
