"""How much work a call is: arithmetic, bytes moved, and of which class.

torch's flop counter knows matrix products, convolutions and some attention; for all
else it says nothing, which a planner would read as free. Here every op has a formula:
the ones below where reading each argument and writing each result once is not the
truth, and that rule for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from lowtide.engine.capture.call import Call
from lowtide.engine.capture.tensors import short_dtype, tensors_in
from lowtide.engine.costs.inputs import input_tensors, output_tensors, span_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call.

    `work_class` is a word that device descriptions have an efficiency for. `flops` runs
    on the matrix units for matrix products, convolutions and attention, else on the
    ordinary ones; `dtype` is the type it is done in.
    """

    work_class: str
    flops: float
    nbytes: float
    dtype: str = "float32"
    draws: int = 0
    largest_result_bytes: int = 0


# Operations per element where one is not the truth. Counted as a vectorised
# polynomial: exponentials and their kin take about sixteen.
_HEAVY = 16
_PER_ELEMENT: dict[str, float] = dict.fromkeys(
    "exp exp2 expm1 log log1p log2 log10 tanh sigmoid erf erfc sin cos tan asin acos "
    "atan atan2 sinh cosh gelu silu mish softplus elu selu logit lgamma pow".split(),
    _HEAVY,
)
_PER_ELEMENT |= dict.fromkeys(
    "gelu_backward silu_backward mish_backward softplus_backward elu_backward "
    "binary_cross_entropy_with_logits log_sigmoid_forward log_sigmoid_backward".split(),
    1.5 * _HEAVY,
)
_PER_ELEMENT |= dict.fromkeys(
    "sqrt rsqrt div reciprocal fmod remainder floor_divide".split(), 4
)
_PER_ELEMENT |= dict.fromkeys(
    "upsample_bilinear2d upsample_bicubic2d grid_sampler_2d _upsample_bilinear2d_aa "
    "upsample_bilinear2d_backward upsample_bicubic2d_backward".split(),
    12,
)
_REDUCTIONS = frozenset(
    "sum mean amax amin max min prod any all argmax argmin var var_mean std std_mean "
    "logsumexp norm linalg_vector_norm cumsum cumprod "
    "median mse_loss l1_loss smooth_l1_loss".split()
)
_DRAWS = frozenset(
    "native_dropout bernoulli rand rand_like randn randn_like randint randint_like "
    "normal uniform normal_functional randperm multinomial exponential poisson "
    "rrelu_with_noise rrelu_with_noise_functional".split()
)


_WITH_BACKWARD = frozenset(
    "attention convolution batch_norm layer_norm softmax pooling".split()
)
_SORTS = frozenset("sort topk argsort kthvalue unique _fft_c2c _fft_r2c".split())


def work_of(call: Call) -> Work:
    """The work of a call, whatever op it is. Runs nothing and allocates nothing."""
    name = name_of(call)
    inputs, outputs = input_tensors(call), output_tensors(call)
    results = [span_bytes(t) for t in outputs]
    moved = float(sum(span_bytes(t) for t in inputs) + sum(results))
    elements = max((t.numel() for t in (*inputs, *outputs)), default=0)
    made = max((t.numel() for t in outputs), default=0)
    is_backward = "backward" in name
    draws = 0
    if "attention" in name or "flex" in name:
        kind, flops = "attention", _attention(call, is_backward)
    elif (counted := _counted_flops(call)) is not None:
        kind, flops = _matrix_class(call, name), counted
    elif "norm" in name and "vector_norm" not in name and name != "norm":
        kind = "batch_norm" if "batch" in name or "instance" in name else "layer_norm"
        flops = (12 if is_backward else 8) * elements
        # The statistics need one pass over the input, the result another.
        moved += sum(span_bytes(t) for t in inputs[: 2 if is_backward else 1])
    elif "softmax" in name:
        kind, flops = "softmax", (4 if is_backward else _HEAVY + 4) * elements
    elif "pool" in name:
        kind = "pooling"
        flops = elements if is_backward else _pooling(call, name, elements)
    elif (indexed := _indexing(name, inputs, outputs)) is not None:
        kind, flops, moved = "indexing", made, indexed
    elif name.rstrip("_") in _DRAWS:
        kind, flops = "random", elements
        draws = outputs[0].numel() if outputs else 0
    elif name in _SORTS:
        kind, flops = "reduction", 5.0 * elements * math.log2(max(2, elements))
    elif name in _REDUCTIONS:
        kind, flops = "reduction", elements
    else:
        per_element = _PER_ELEMENT.get(name.rstrip("_"), 1)
        if name == "pow" and call.args[1:] and call.args[1] in (2, 3, 0.5, 1):
            per_element = 2
        kind = "transcendental" if per_element >= _HEAVY else "elementwise"
        flops = per_element * elements
    if is_backward and kind in _WITH_BACKWARD:
        kind += "_backward"
    dtype = _dtype((*inputs, *outputs))
    return Work(kind, flops, moved, dtype, draws, max(results, default=0))


def name_of(call: Call) -> str:
    """The op's name without namespace and overload: `convolution_backward`."""
    name = getattr(call.target, "__name__", None) or str(call.target)
    return name.split("::")[-1].split(".")[0]


def _dtype(tensors: Sequence[torch.Tensor]) -> str:
    for tensor in tensors:
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return short_dtype(tensor)
    return "float32"


def _counted_flops(call: Call) -> float | None:
    if name_of(call) in ("convolution", "_convolution", "convolution_backward"):
        return _convolution(call)
    packet = getattr(call.target, "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return _linear_algebra(call)
    try:
        return float(formula(*call.args, **call.kwargs, out_val=call.outputs))
    except (TypeError, ValueError, IndexError, AssertionError, AttributeError):
        return None


def _convolution(call: Call) -> float:
    """Two operations per weight and place, in each direction that is asked for.

    NOTE(torch>=2.13): the flop counter multiplies the backward of grouped convolutions
    by the number of groups.
    """
    if "backward" in name_of(call):
        result, image, weight = call.args[:3]
        directions = sum(bool(wanted) for wanted in call.args[-1][:2])
    else:
        image, weight, result, directions = *call.args[:2], output_tensors(call)[0], 1
    places = image if argument_of(call, "transposed") else result
    return 2.0 * places.numel() * weight.numel() / weight.shape[0] * directions


def _linear_algebra(call: Call) -> float | None:
    """Products that the flop counter leaves out, and cubic decompositions."""
    name, inputs = name_of(call), input_tensors(call)
    if name in ("mv", "addmv", "dot", "vdot", "linear", "_int_mm", "mkldnn_linear"):
        return 2.0 * max(t.numel() for t in inputs)
    if name.startswith(("linalg_", "_linalg_", "cholesky", "triangular_solve", "lu_")):
        if "vector_norm" in name or not inputs or inputs[0].dim() < 2:
            return None
        return 4.0 * inputs[0].numel() * inputs[0].shape[-1]
    if name in ("_cdist_forward", "_trilinear"):
        return 3.0 * inputs[0].numel() * inputs[-1].shape[-2]
    return None


def _matrix_class(call: Call, name: str) -> str:
    if "conv" not in name:
        return "matmul"
    return "depthwise" if (argument_of(call, "groups") or 1) > 1 else "convolution"


def _attention(call: Call, is_backward: bool) -> float:
    """Two products forward, five backward; half of it if the mask is triangular."""
    tensors = [t for t in tensors_in((call.args, call.kwargs)) if t.dim() == 4]
    if len(tensors) < 3 + is_backward:
        return _counted_flops(call) or 0.0  # sequences of several lengths, packed
    query, key, value = tensors[1:4] if is_backward else tensors[:3]
    pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    flops = 2.0 * pairs * (query.shape[3] + value.shape[3])
    flops *= 2.5 if is_backward else 1.0
    return flops / 2 if argument_of(call, "is_causal") else flops


def argument_of(call: Call, wanted: str) -> Any:
    """The argument of this name, if it is given."""
    schema = getattr(call.target, "_schema", None)
    names = [a.name for a in schema.arguments] if schema else []
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}.get(wanted)


def _pooling(call: Call, name: str, elements: int) -> float:
    if "adaptive" in name:
        return float(elements)
    sizes = [a for a in call.args if isinstance(a, list | tuple) and a]
    area = math.prod(sizes[0]) if sizes and isinstance(sizes[0][0], int) else 1
    outputs = output_tensors(call)
    return float(area * (outputs[0].numel() if outputs else elements))


def _indexing(
    name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> float | None:
    """Bytes moved by ops that touch only a part of a table, or None for others."""
    made = float(sum(span_bytes(t) for t in outputs))
    match name.rstrip("_"):
        case "embedding" | "index" | "_unsafe_index" | "gather" | "index_select":
            places = sum(span_bytes(t) for t in inputs[1:])
            return 2 * made + places
        case "embedding_dense_backward":
            # Zeros for the whole table, then each row read, added to and written.
            return made + 3 * span_bytes(inputs[0]) + span_bytes(inputs[1])
        case (
            "index_put" | "_unsafe_index_put" | "scatter" | "scatter_add" | "index_add"
        ):
            moved = sum(span_bytes(t) for t in inputs[1:])
            return span_bytes(inputs[0]) + made + 2 * moved
        case "nll_loss_forward" | "nll_loss2d_forward":
            # One value for each label, and each value is a line of the cache.
            return sum(span_bytes(t) + 64 * t.numel() for t in inputs[1:2])
        case "nll_loss_backward" | "nll_loss2d_backward":
            return 2 * made
        case "slice_backward" | "select_backward" | "constant_pad_nd":
            return made + 2 * sum(span_bytes(t) for t in inputs)
        case "masked_select" | "nonzero" | "repeat_interleave" | "roll" | "flip":
            return made + sum(span_bytes(t) for t in inputs)
        case _:
            return None
