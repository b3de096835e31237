"""Let dynamo go on behind a graph break where it would leave a function uncaptured.

NOTE(torch>=2.13,<2.16): where a graph breaks in a loop, dynamo leaves all the function,
lest there be a graph for each round. Its code is valid either way, as it says at
`maybe_has_backedge`, which finds loops. And it never begins a graph in the files of
`torch.nn`, such as that of `Sequential`. A mixture of experts, an iteration that stops
by itself and a transformer that looks at its mask are planned in pieces only because
both are allowed here, on threads that ask for it.

Nor does it know in which module a class of torch's is, which peft asks of every weight
(`type(weight).__module__`), and that no random number is below zero: many transformers
ask before each layer whether to leave it out (`torch.rand([]) < self.layerdrop`), which
by default they never do. Nor can it make again, behind a break, what is left of a loop
over the values of a dictionary, such as that of `Sequential` over its modules. And a
table whose gradient is sparse stays outside of the graphs: those hold strided tensors.
So does the registration of hooks, whose dictionaries dynamo makes again as plain ones,
and what an op that is written in Python does inside, as with torch's own custom ops.
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import _ops, nn
from torch._dynamo import trace_rules
from torch._dynamo.bytecode_transformation import (
    create_build_tuple,
    create_call_function,
)
from torch._dynamo.convert_frame import CatchErrorsWrapper
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.exc import unimplemented
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.types import (
    ConvertFrameReturn,
    FrameAction,  # pyright: ignore[reportPrivateImportUsage]
    FrameExecStrategy,  # pyright: ignore[reportPrivateImportUsage]
)
from torch._dynamo.variables import (
    ConstantVariable,
    SkipFunctionVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
)
from torch._dynamo.variables.iter import DictValuesIterator
from torch._dynamo.variables.misc import GetAttrVariable
from torch.nn import functional as F

from lowtide.engine.capture.looks import look_at_inputs
from lowtide.engine.capture.momentum import with_tensor_for_momentum
from lowtide.engine.capture.questions import QUESTIONS, is_told_no
from lowtide.engine.seam import COMPARE

_STATE = threading.local()
_MODULES = str(Path(nn.modules.__file__).parent)
_finds_loop = InstructionTranslatorBase.maybe_has_backedge
_compare: Any = getattr(TensorVariable, COMPARE)
_call_method: Any = GetAttrVariable.call_method
_call_torch: Any = TorchInGraphFunctionVariable.call_function
_call_what_is_skipped: Any = SkipFunctionVariable.call_function
_make_again: Any = DictValuesIterator.reconstruct
_files_to_capture: Any = trace_rules.get_legacy_mod_inlinelist
_convert: Any = CatchErrorsWrapper.__call__


@contextmanager
def going_on(is_wanted: bool, is_eager: bool) -> Iterator[None]:
    """Whether pieces are captured within loops and in torch's own modules.

    `is_eager` says that torch's own kernels will run them.
    """
    before = _STATE.__dict__.copy()
    _STATE.goes_on, _STATE.is_ours, _STATE.is_eager = is_wanted, True, is_eager
    try:
        yield
    finally:
        _STATE.__dict__.clear()
        _STATE.__dict__.update(before)


def _goes_on() -> bool:
    return getattr(_STATE, "goes_on", False)


def _has_backedge(translator: Any) -> bool:
    return not _goes_on() and _finds_loop(translator)


def _inlinelist() -> set[str]:
    files = _files_to_capture()
    return {*files, _MODULES} if _goes_on() else files


def _convert_outside_of_ops(converter: Any, *given: Any) -> ConvertFrameReturn:
    """Capture a function that is about to run, unless an op has called it."""
    caller = sys._getframe(1).f_code.co_filename
    if not getattr(_STATE, "is_ours", False) or caller != _ops.__file__:
        return _convert(converter, *given)
    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    return ConvertFrameReturn(skip, apply_to_code=False)


def _call_on_attribute(attribute: Any, tx: Any, name: str, *given: Any) -> Any:
    owner = attribute.obj
    if attribute.name == "__module__" and isinstance(
        owner, TorchInGraphFunctionVariable
    ):
        text = ConstantVariable.create(owner.value.__module__)
        return text.call_method(tx, name, *given)
    return _call_method(attribute, tx, name, *given)


def _compare_with_draw(left: Any, tx: Any, right: Any, op: str) -> Any:
    if (
        getattr(_STATE, "is_ours", False)
        and op == "__lt__"
        and right.is_python_constant()
        and left.as_proxy().node.target is torch.rand
        and left.ndim == 0
        and right.as_python_constant() <= 0
    ):
        return ConstantVariable.create(False)
    return _compare(left, tx, right, op)


# Whether a stream is being recorded: a planned step is not. A torch without such
# devices raises, which code that asks takes for a no, and dynamo cannot follow.
_RECORDING: frozenset[Any] = frozenset(
    {torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing}
)
_LOOKED_AT: dict[Any, inspect.Signature] = {
    f: inspect.signature(f) for f in (F.embedding, F.embedding_bag, F.batch_norm)
}


def _call_as_eager(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if function.value in QUESTIONS and is_told_no(tx):
        return ConstantVariable.create(False)
    if _asks_for_recording(function):
        return ConstantVariable.create(False)
    signature = _LOOKED_AT.get(function.value) if callable(function.value) else None
    if signature is not None and getattr(_STATE, "is_ours", False):
        given = signature.bind(*args, **kwargs).arguments
        other = with_tensor_for_momentum(tx, given) if _STATE.is_eager else None
        if other is not None:
            return _call_torch(other[0], tx, (), other[1])
        sparse = given.get("sparse")
        if sparse is not None and sparse.as_python_constant():
            unimplemented(
                gb_type="sparse gradient",
                context=function.value.__name__,
                explanation="the gradient of its table is sparse",
                hints=[],
            )
    return _call_torch(function, tx, args, kwargs)


def _call_skipped(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if _asks_for_recording(function):
        return ConstantVariable.create(False)
    return _call_what_is_skipped(function, tx, args, kwargs)


def _asks_for_recording(function: Any) -> bool:
    return getattr(_STATE, "is_ours", False) and function.value in _RECORDING


def _make_rest_of_values(values: Any, codegen: Any) -> None:
    if not _goes_on():
        return _make_again(values, codegen)
    rest = list(copy.copy(values._iter))
    codegen.add_push_null(
        lambda: codegen.append_output(codegen.create_load_python_module(iter))
    )
    codegen.foreach(rest)
    codegen.append_output(create_build_tuple(len(rest)))
    codegen.extend_output(create_call_function(1, False))


look_at_inputs()
TorchInGraphFunctionVariable.call_function = _call_as_eager  # type: ignore[method-assign]
SkipFunctionVariable.call_function = _call_skipped  # type: ignore[method-assign]
CatchErrorsWrapper.__call__ = _convert_outside_of_ops  # type: ignore[method-assign]
DictValuesIterator.reconstruct = _make_rest_of_values  # type: ignore[method-assign]
setattr(TensorVariable, COMPARE, _compare_with_draw)
GetAttrVariable.call_method = _call_on_attribute  # type: ignore[method-assign]
# `torch.distributed.init_process_group` asks for it.
_inlinelist.cache_clear = _files_to_capture.cache_clear  # type: ignore[attr-defined]
InstructionTranslatorBase.maybe_has_backedge = _has_backedge  # type: ignore[method-assign]
trace_rules.get_legacy_mod_inlinelist = _inlinelist  # type: ignore[assignment]
for _name in dir(nn.Module):
    if _name.startswith("register_") and _name.endswith("_hook"):
        skip_code(getattr(nn.Module, _name).__code__)
