"""How much work a call is: arithmetic, bytes moved, and of which class.

torch's flop counter knows matrix products, convolutions and some attention; for all
else it says nothing, which a planner would read as free. Here every op has a formula:
the ones below where reading each argument and writing each result once is not the
truth, and that rule for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from lowtide.engine.capture.call import Call
from lowtide.engine.costs.inputs import input_tensors, output_tensors, span_bytes

WorkClass = Literal[
    "matmul",
    "convolution",
    "convolution_backward",
    "depthwise",
    "attention",
    "attention_backward",
    "batch_norm",
    "batch_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "softmax",
    "softmax_backward",
    "pooling",
    "pooling_backward",
    "reduction",
    "indexing",
    "random",
    "transcendental",
    "elementwise",
]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call.

    `flops` runs on the matrix units for matrix products, convolutions and attention,
    else on the ordinary ones; `dtype` is the type it is done in.
    """

    work_class: WorkClass
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


def work_of(call: Call) -> Work:
    """The work of a call, whatever op it is. Runs nothing and allocates nothing."""
    largest = max((span_bytes(t) for t in output_tensors(call)), default=0)
    return replace(_work(call), largest_result_bytes=largest)


def _work(call: Call) -> Work:
    name = name_of(call)
    inputs, outputs = input_tensors(call), output_tensors(call)
    read = float(sum(span_bytes(t) for t in inputs))
    written = float(sum(span_bytes(t) for t in outputs))
    elements = max((t.numel() for t in (*inputs, *outputs)), default=0)
    dtype = _dtype(inputs, outputs)
    if "attention" in name or "flex" in name:
        return _attention(call, name, read + written, dtype)
    flops = _counted_flops(call)
    if flops is not None:
        return Work(_matrix_class(call, name), flops, read + written, dtype)
    if "norm" in name and "vector_norm" not in name and name != "norm":
        # The statistics need one pass over the input, the result another.
        passes = 2 if "backward" in name else 1
        again = float(sum(span_bytes(t) for t in inputs[:passes]))
        work = (12 if "backward" in name else 8) * elements
        return Work(_norm_class(name), work, read + again + written, dtype)
    if "softmax" in name:
        if "backward" in name:
            return Work("softmax_backward", 4 * elements, read + written, dtype)
        return Work("softmax", (_HEAVY + 4) * elements, read + written, dtype)
    if "pool" in name:
        if "backward" in name:
            return Work("pooling_backward", elements, read + written, dtype)
        return Work("pooling", _pooling(call, name, elements), read + written, dtype)
    indexed = _indexing(call, name, inputs, outputs)
    if indexed is not None:
        moved = max((t.numel() for t in outputs), default=0)
        return Work("indexing", moved, indexed, dtype)
    if name.rstrip("_") in _DRAWS:
        drawn = outputs[0].numel() if outputs else 0
        return Work("random", elements, read + written, dtype, draws=drawn)
    if name in (
        "sort",
        "topk",
        "argsort",
        "kthvalue",
        "unique",
        "_fft_c2c",
        "_fft_r2c",
    ):
        work = 5.0 * elements * max(1.0, math.log2(max(2, elements)))
        return Work("reduction", work, read + written, dtype)
    if name in _REDUCTIONS:
        return Work("reduction", elements, read + written, dtype)
    per_element = _PER_ELEMENT.get(name.rstrip("_"), 1)
    if name == "pow" and call.args[1:] and call.args[1] in (2, 3, 0.5, 1):
        per_element = 2
    kind = "transcendental" if per_element >= _HEAVY else "elementwise"
    return Work(kind, per_element * elements, read + written, dtype)


def name_of(call: Call) -> str:
    """The op's name without namespace and overload: `convolution_backward`."""
    name = getattr(call.target, "__name__", None) or str(call.target)
    return name.split("::")[-1].split(".")[0]


def _dtype(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> str:
    for tensor in (*inputs, *outputs):
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return str(tensor.dtype).removeprefix("torch.")
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
    if "backward" not in name_of(call):
        image, weight = call.args[0], call.args[1]
        places = image if _argument(call, "transposed") else output_tensors(call)[0]
        return 2.0 * places.numel() * weight.numel() / weight.shape[0]
    gradient, image, weight = call.args[:3]
    places = image if _argument(call, "transposed") else gradient
    directions = sum(bool(wanted) for wanted in call.args[-1][:2])
    return 2.0 * places.numel() * weight.numel() / weight.shape[0] * directions


def _norm_class(name: str) -> WorkClass:
    backward = "backward" in name
    if "batch" in name or "instance" in name:
        return "batch_norm_backward" if backward else "batch_norm"
    return "layer_norm_backward" if backward else "layer_norm"


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


def _matrix_class(call: Call, name: str) -> WorkClass:
    if "conv" not in name:
        return "matmul"
    groups = next(
        (a for a in reversed(call.args) if isinstance(a, int) and type(a) is not bool),
        1,
    )
    if groups > 1:
        return "depthwise"
    return "convolution_backward" if "backward" in name else "convolution"


def _attention(call: Call, name: str, nbytes: float, dtype: str) -> Work:
    """Two products forward, five backward; half of it if the mask is triangular."""
    backward = "backward" in name
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.dim() == 4]
    if len(tensors) < 3 + backward:
        flops = _counted_flops(call) or 0.0  # sequences of several lengths, packed
        kind = "attention_backward" if backward else "attention"
        return Work(kind, flops, nbytes, dtype)
    query, key, value = tensors[1:4] if backward else tensors[:3]
    batch_heads = query.shape[0] * query.shape[1]
    pairs = batch_heads * query.shape[2] * key.shape[2]
    flops = 2.0 * pairs * (query.shape[3] + value.shape[3])
    flops *= 2.5 if backward else 1.0
    if _argument(call, "is_causal"):
        flops /= 2
    return Work("attention_backward" if backward else "attention", flops, nbytes, dtype)


def _argument(call: Call, wanted: str) -> Any:
    schema = getattr(call.target, "_schema", None)
    if wanted in call.kwargs or schema is None:
        return call.kwargs.get(wanted)
    for place, argument in enumerate(schema.arguments):
        if argument.name == wanted and place < len(call.args):
            return call.args[place]
    return None


def _pooling(call: Call, name: str, elements: int) -> float:
    if "adaptive" in name:
        return float(elements)
    sizes = [a for a in call.args if isinstance(a, list | tuple) and a]
    area = math.prod(sizes[0]) if sizes and isinstance(sizes[0][0], int) else 1
    outputs = output_tensors(call)
    return float(area * (outputs[0].numel() if outputs else elements))


def _indexing(
    call: Call,
    name: str,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
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
