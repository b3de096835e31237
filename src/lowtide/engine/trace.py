"""Run a training step on tensors without bytes, to see its graphs before it runs."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from lowtide.engine.capture.joint import Piece
from lowtide.engine.capture.record import Recorder, Recording
from lowtide.engine.capture.step import step_of
from lowtide.engine.compile import Decide, Halves, Watch, compile_with
from lowtide.errors import CaptureError, LowtideError
from lowtide.step.graph import Phase


def compiled(
    function: Callable[..., Any], decide: Decide, watch: Watch, *, fullgraph: bool
) -> Callable[..., Any]:
    """The function under `torch.compile`, each graph run as `decide` says.

    Every call gets a code object and a compile cache of its own, so that the number of
    shapes and models in one process is not limited by dynamo's recompile limit.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    fresh = types.FunctionType(
        call.__code__.replace(co_name=f"call_{id(watch):x}"),
        call.__globals__,
        closure=call.__closure__,
    )
    return torch.compile(  # pyright: ignore[reportCallIssue]
        fresh,
        backend=compile_with(decide, watch),
        dynamic=False,
        fullgraph=fullgraph,
        isolate_recompiles=True,
        recompile_limit=64,
    )


def keep_everything(piece: Piece) -> Halves:
    """The order of the unplanned step."""
    step = step_of(piece)
    turn = step.baseline.index(step.turn)
    return step.baseline[:turn], step.baseline[turn + 1 :]


def dry_run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    modules: Sequence[nn.Module],
    loss: Callable[[Any], torch.Tensor],
) -> Recording:
    """What `loss(function(*args, **kwargs)).backward()` does, seen on fake tensors.

    The modules' parameters and buffers are replaced by fakes for the time of the run.
    Nothing is computed, and no real tensor is allocated or changed.
    """
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


def explain_failure(error: BaseException) -> BaseException:
    """Our own error out of the layers that torch wraps around it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, LowtideError):
            return seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner or seen.__cause__ or seen.__context__
    return error
