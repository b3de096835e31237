"""Batch norms whose momentum is computed from a value: `nn.BatchNorm2d(momentum=None)`.

Its momentum is one over the number of batches, a Python number that is another one in
each step. The op takes numbers only, so dynamo cannot capture it with one that is not
known. Here the same number is computed as a tensor; running statistics are marked with
it while the step is traced, and in the joint graph the op gets it as its momentum. Its
kernel takes the number out, when it runs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._dynamo.variables import TorchInGraphFunctionVariable
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.nn import functional as F

# Places among the arguments of the op in a joint graph.
_STATISTICS, _MOMENTUM = 3, 6
# What Python computes with, and what is the same in tensors of it.
_TYPE = torch.float64
_SAME_IN_TENSORS = (operator.truediv, operator.mul, operator.add, operator.sub)


@torch.library.custom_op("lowtide::with_momentum", mutates_args=())
def _with_momentum(statistics: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
    """Statistics that are to be updated with this momentum; a mark in a trace."""
    return statistics.clone()


@_with_momentum.register_fake
def _(statistics: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(statistics)


_MARK = torch.ops.lowtide.with_momentum.default


@torch._dynamo.allow_in_graph
def _batch_norm_by(
    momentum: torch.Tensor,
    input: torch.Tensor,
    running_mean: torch.Tensor,
    **others: Any,
) -> torch.Tensor:
    """`F.batch_norm` with its momentum in a tensor."""
    if type(momentum) is torch.Tensor:  # a graph that runs as it is
        return F.batch_norm(input, running_mean, momentum=momentum.item(), **others)
    marked = _with_momentum(running_mean, momentum)
    result = F.batch_norm(input, marked, momentum=0.0, **others)
    running_mean.copy_(marked)
    return result


def with_tensor_for_momentum(
    tx: Any, given: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """What dynamo is to call, and with what, if the momentum comes from a value."""
    number, training = given.get("momentum"), given.get("training")
    if not (isinstance(number, SymNodeVariable) and given["running_mean"].is_tensor()):
        return None
    if training is None or training.as_python_constant() is not True:
        return None  # it needs none
    momentum = _as_tensor(tx, number.as_proxy().node)
    if momentum is None:
        return None
    return TorchInGraphFunctionVariable(_batch_norm_by), given | {"momentum": momentum}


def _as_tensor(tx: Any, number: Any) -> Any:
    """A number of a graph that dynamo records, as a tensor that is computed alike.

    It is `None` where that is not known to be the same.
    """

    def record(op: str, target: Any, *args: Any, **named: Any) -> Any:
        return wrap_fx_proxy(tx, tx.output.create_proxy(op, target, args, named))

    if not isinstance(number, fx.Node):
        return record("call_function", torch.full, (), number, dtype=_TYPE)
    source = number.args[0]
    if number.target in (float, torch.sym_float):
        return _as_tensor(tx, source)
    if number.target == "item" and isinstance(source, fx.Node):
        if [*source.users][-1] is not number:
            return None  # it may have changed since
        value = fx.Proxy(source, tx.output.current_tracer)
        return record("call_method", "to", value, _TYPE)
    if number.target not in _SAME_IN_TENSORS:
        return None
    parts = [_as_tensor(tx, part) for part in number.args]
    if any(part is None for part in parts):
        return None
    return record("call_function", number.target, *(p.as_proxy() for p in parts))


def set_momentum(joint: fx.GraphModule) -> None:
    """Give each batch norm of a joint graph the momentum that it is marked with."""
    for mark in joint.graph.find_nodes(op="call_function", target=_MARK):
        statistics, momentum = mark.args
        for norm in list(mark.users):
            args = list(norm.args)
            args[_STATISTICS], args[_MOMENTUM] = statistics, momentum
            norm.args = tuple(args)
        joint.graph.erase_node(mark)
