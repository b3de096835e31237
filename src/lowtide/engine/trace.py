"""Run a training step on tensors without bytes, to see its graphs before it runs.

The user's code runs once more than in training, so it runs in a copy of the process
(`aside`), and only what was seen comes back: the step, and the calls its ops make.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.utils import _pytree as pytree

from lowtide.engine.aside import run_aside
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.record import Recorder, Recording
from lowtide.engine.compile import compiled
from lowtide.engine.orders import keep_everything
from lowtide.engine.prepare import Unpriced, unpriced
from lowtide.engine.watch import Watch
from lowtide.errors import CaptureError, LowtideError
from lowtide.step.graph import Phase


@dataclass(frozen=True)
class Seen:
    """What a dry run saw: each graph as a step of its own, and the step of all.

    `visits` says how often each graph ran. Where one of them runs several times there
    is no `whole`: all its runs share one order of ops, which a schedule cannot say.
    """

    pieces: tuple[Unpriced, ...]
    visits: tuple[int, ...]
    whole: Unpriced | None


def look(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    modules: Sequence[nn.Module],
    loss: Callable[[Any], torch.Tensor],
    name: str = "step",
) -> Seen:
    """What `loss(function(*args, **kwargs)).backward()` does, seen on fake tensors.

    Nothing of it is computed, and nothing that the step changes changes here.

    Raises:
        CaptureError: there is no loss to differentiate, or the step cannot run without
            values.
    """
    if is_sharded(modules):
        raise CaptureError(
            "its parameters are sharded over processes, which a dry run would disturb",
            fix="Use lowtide.optimize, which plans such a model piece by piece",
        )

    def work() -> Seen:
        try:
            recording = _recording(function, args, kwargs, modules=modules, loss=loss)
        except LowtideError:
            raise
        except Exception as error:
            raise _failed_capture(error) from None
        if not recording.pieces:
            raise CaptureError(
                "torch.compile captured nothing of it",
                fix="Use lowtide.optimize, which runs what cannot be captured as it is",
            )
        visits = recording.visits
        alone = recording.most_visits == 1
        return Seen(
            pieces=tuple(unpriced(piece) for piece in recording.pieces),
            visits=tuple(visits[id(piece)] for piece in recording.pieces),
            whole=unpriced(recording, name=name) if alone else None,
        )

    return run_aside(work)


def is_sharded(modules: Sequence[nn.Module]) -> bool:
    """Whether parameters are parts of larger ones that other processes hold."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for m in modules for p in m.parameters())


_VALUES_DECIDE = (DynamicOutputShapeException, DataDependentOutputException)


def _failed_capture(error: Exception) -> CaptureError:
    """What went wrong, without the advice that torch wraps around it."""
    text = " ".join(str(error).split())
    inner = re.search(
        r"got (\w+(?:Error|Exception)\(.*?\))(?= Hint| Developer|$)", text
    )
    explained = re.search(r"Explanation: (.*?)(?= Hint| Developer|$)", text)
    if isinstance(error, _VALUES_DECIDE):
        return CaptureError(
            f"values decide its shapes or its branches ({text})",
            fix="Keep shapes fixed, as with torch.where in place of a mask, or use "
            "lowtide.optimize, which plans such a model piece by piece as it runs",
        )
    passed = tuple(_passed(error))
    if inner:
        reason = inner[1]
    elif explained:
        reason = explained[1]
    else:
        reason = f"{type(error).__name__}: {text}"
    return CaptureError(
        reason if len(reason) <= 400 else reason[:400] + " ...",
        fix="Check that loss(model(batch)).backward() runs without lowtide",
        passed=passed,
    )


def _passed(error: BaseException) -> Iterator[tuple[str, int]]:
    """Files and lines that an error passed through, its causes' included."""
    seen: BaseException | None = error
    while seen is not None:
        for frame, line in traceback.walk_tb(seen.__traceback__):
            yield frame.f_code.co_filename, line
        # While torch compiles, the user's lines are in the text.
        _, _, users = str(seen).partition("from user code:")
        for file, line in re.findall(r'File "([^"]+)", line (\d+)', users):
            yield file, int(line)
        seen = seen.__cause__ or seen.__context__


def _recording(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    modules: Sequence[nn.Module],
    loss: Callable[[Any], torch.Tensor],
) -> Recording:
    """Run the step on fakes, which replace parameters and buffers meanwhile."""
    mode = _fake_mode(modules, (args, kwargs))
    recorder = Recorder()

    def around(
        piece: Piece, phase: Phase, values: list[Any], run: Callable[..., Any]
    ) -> Any:
        seen = list(values)
        with recorder.within():
            outputs = run(values)
        recorder.visit(piece, phase, seen, outputs)
        return outputs

    watch = Watch(around=around)
    with _faked(modules, mode), _quiet_failures(), mode:
        fake_args, fake_kwargs = pytree.tree_map(
            lambda v: _fake(v, mode), (tuple(args), dict(kwargs))
        )
        call = compiled(function, keep_everything, watch, fullgraph=False)
        with recorder:
            result = loss(call(*fake_args, **fake_kwargs))
            _check_loss(result)
            result.backward()
    return recorder.recording


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(
            f"the loss is a {type(loss).__name__}, not a tensor",
            fix="Return the tensor, without .item() or float()",
        )
    if not torch.is_grad_enabled():
        raise CaptureError(
            "gradients are turned off", fix="Call it outside of torch.no_grad()"
        )
    if not loss.requires_grad:
        raise CaptureError(
            "the loss does not depend on anything that requires a gradient",
            fix="Let at least one parameter or input require a gradient",
        )
    if loss.numel() != 1:
        raise CaptureError(
            f"the loss has the shape {tuple(loss.shape)}, not that of one number",
            fix="Reduce it, as with loss.mean()",
        )


@contextmanager
def _quiet_failures() -> Iterator[None]:
    """An op that fails on fake tensors is raised; it need not also be logged."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fake_mode(modules: Sequence[nn.Module], rest: Any) -> FakeTensorMode:
    """The mode of the fake tensors already there, or a new one."""
    values = [p for m in modules for p in m.parameters()]
    for value in (*values, *pytree.tree_leaves(rest)):
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


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
        for root in modules:
            for module in root.modules():
                tables = (module._parameters, module._buffers)
                undo += [(t, dict(t)) for t in (module.__dict__, *tables)]
                for table in tables:
                    for name, value in table.items():
                        if value is None or isinstance(value, FakeTensor):
                            continue
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
