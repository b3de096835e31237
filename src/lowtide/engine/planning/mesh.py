"""The step of one of many processes, on a machine that has none of them.

A model is captured with five of its equal blocks, and one of them is repeated as often
as the model has it (`step/blocks.py`). Where layers are divided among `tp` processes,
the linear layers that the model's own plan names are captured with the part that one
process has, and exchange sums over a process group that is not there. Where parameters
are divided among `dp` processes, as `fully_shard` does it block by block, they are
gathered and their gradients are summed by ops of the step (`step/shards.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as collectives

from lowtide.engine.capture.piece import COLLECTIVE
from lowtide.engine.costs.devices import find_device
from lowtide.engine.costs.exchange import ring_seconds
from lowtide.engine.planning.prepare import prepare
from lowtide.engine.planning.trace import look
from lowtide.engine.training import Inputs, Loss
from lowtide.errors import CaptureError, InvalidArgumentError
from lowtide.step.blocks import FEW, with_blocks
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.shards import Sharding, sharded

_WORDS = ("dp", "tp", "sp")


def read_mesh(mesh: str | Mapping[str, int]) -> dict[str, int]:
    """How many processes divide what: `"dp=128,tp=8"`."""
    asked = f"mesh={mesh!r}"
    fix = 'Write mesh="dp=128,tp=8"'
    if isinstance(mesh, str):
        pairs = [part.partition("=")[::2] for part in mesh.split(",") if part.strip()]
    else:
        pairs = [(key, str(value)) for key, value in mesh.items()]
    found: dict[str, int] = {word: 1 for word in _WORDS}
    for key, value in pairs:
        name = key.strip().lower()
        if name not in found:
            raise InvalidArgumentError(asked, f"{name!r} is none of dp, tp, sp", fix)
        if not value.strip().isdigit() or int(value) < 1:
            raise InvalidArgumentError(asked, f"{value!r} is no number of ranks", fix)
        found[name] = int(value)
    if found["sp"] not in (1, found["tp"]):
        why = "the sequence is divided among the same ranks as the layers"
        raise InvalidArgumentError(asked, why, f"Write sp={found['tp']}")
    return found


def profile_on_mesh(
    model: nn.Module,
    inputs: Inputs,
    mesh: str | Mapping[str, int],
    *,
    loss: Loss,
    name: str,
    device: str | None,
) -> StepGraph:
    """The step of one process of a mesh, with estimated costs.

    Raises:
        InvalidArgumentError: The model cannot be divided so.
        CaptureError: It has no equal blocks, or they are not captured as equal graphs.
    """
    sizes = read_mesh(mesh)
    dp, tp = sizes["dp"], sizes["tp"]
    path, blocks = _blocks(model)
    described = find_device(device or "h100")
    with ExitStack() as stack:
        stack.enter_context(_with_few(blocks))
        if tp > 1:
            group = stack.enter_context(_absent_processes(dp * tp, tp))
            split = _Split(group, tp, in_sequence=sizes["sp"] > 1)
            stack.enter_context(_divided(model, blocks, split))
        seen = look(model._call_impl, inputs, modules=[model], loss=loss, name=name)
        if len(seen) > 1 or seen[0][1] > 1:
            raise CaptureError(
                "it is not captured as one graph",
                fix="Remove its graph breaks, or give a function that returns the loss",
            )
        step = prepare(seen[0][0], [], how="estimate", device=described.name)
    step = with_blocks(step, path, len(blocks))
    is_wide = dp * tp > described.devices_per_machine
    small = min((p.element_size() for p in model.parameters()), default=4)
    how = Sharding(
        ways=dp,
        growth=4 / small,
        gather_seconds=lambda nbytes: ring_seconds(
            nbytes, dp, described, is_wide=is_wide
        ),
    )
    made = sharded(_repeatable(step), how)
    parameters = sum(p.numel() for p in model.parameters())
    note = (
        f"One of {dp * tp} ranks: parameters, gradients and Adam's state divided by "
        f"{dp}, layers by {tp}, the sequence between them by {sizes['sp']}. "
        f"{len(blocks)} equal blocks, of which one was captured and repeated; "
        f"{parameters / 1e9:.1f} billion parameters, kept in 32 bits "
        f"({format_bytes(4 * parameters)} in all). Exchanges are priced by the links "
        f"of {described.name}, less what a block's compute hides."
    )
    facts = {**made.facts, "mesh": [dp, tp]}
    return replace(made, name=name, facts=facts, notes=(*made.notes, note))


def _repeatable(step: StepGraph) -> StepGraph:
    """The step with exchanges that may run again, as all ranks follow one plan."""
    ops = (replace(op, once="") if op.once == COLLECTIVE else op for op in step.ops)
    return replace(step, ops=tuple(ops))


def _blocks(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The longest list of equal modules, and where it is."""
    found: list[tuple[int, str, nn.ModuleList]] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) >= FEW:
            shapes = {
                (type(m), tuple((n, p.shape) for n, p in m.named_parameters()))
                for m in module
            }
            if len(shapes) == 1:
                found.append((len(module), path, module))
    if not found:
        raise CaptureError(
            "it has no list of five or more equal blocks, of which one could be "
            "captured for all",
            fix="Put its layers into an nn.ModuleList, or leave mesh= out",
        )
    _, path, blocks = max(found, key=lambda each: each[0])
    return path, blocks


@contextmanager
def _with_few(blocks: nn.ModuleList) -> Iterator[None]:
    """The first blocks alone; a model runs what is in its list."""
    all_of_them = dict(blocks._modules)
    for name in list(all_of_them)[FEW:]:
        del blocks._modules[name]
    try:
        yield
    finally:
        blocks._modules.update(all_of_them)


@contextmanager
def _absent_processes(count: int, tp: int) -> Iterator[Any]:
    """A group of `tp` out of so many processes, none of which is there."""
    distributed = torch.distributed
    if distributed.is_initialized():
        raise InvalidArgumentError(
            "a mesh with tp > 1",
            "this process has met others already",
            "Plan in a process of its own",
        )
    # NOTE(torch>=2.13): torch's own stand-in for a process group is among its tests.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=max(count, tp)
    )
    try:
        yield distributed.new_group(list(range(tp)))
    finally:
        distributed.destroy_process_group()


@dataclass(frozen=True)
class _Split:
    """How layers are divided: among whom, and whether the sequence is between them."""

    group: Any
    ways: int
    in_sequence: bool


def _gather(x: torch.Tensor, dim: int, split: _Split) -> torch.Tensor:
    parts = collectives.all_gather_tensor(x.contiguous(), dim, split.group)
    return collectives.wait_tensor(parts)


def _sum(x: torch.Tensor, split: _Split) -> torch.Tensor:
    """The sum over all; with a divided sequence, of each rank's part of it."""
    x = x.contiguous()
    if split.in_sequence:
        part = collectives.reduce_scatter_tensor(x, "sum", 1, split.group)
        return collectives.wait_tensor(part)
    return collectives.wait_tensor(collectives.all_reduce(x, "sum", split.group))


def _share(x: torch.Tensor, split: _Split) -> torch.Tensor:
    """The whole for all; with a divided sequence, of all ranks' parts of it."""
    return _gather(x, 1, split) if split.in_sequence else x


def _own_part(x: torch.Tensor, split: _Split) -> torch.Tensor:
    """This rank's part of the sequence."""
    return x.chunk(split.ways, 1)[0].contiguous()


def _gather_columns(x: torch.Tensor, split: _Split) -> torch.Tensor:
    return _gather(x, x.dim() - 1, split)


def _own_columns(x: torch.Tensor, split: _Split) -> torch.Tensor:
    return x[..., : x.shape[-1] // split.ways].contiguous()


class _Exchange(torch.autograd.Function):
    """Values are exchanged on the way there, and gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, split: _Split, there: Any, back: Any) -> Any:
        ctx.split, ctx.back = split, back
        made = there(x, split)
        return x.view_as(x) if made is x else made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.back(gradient, ctx.split), None, None, None


def _summed(x: Any, split: _Split) -> Any:
    """Adds up what the processes have."""
    return _Exchange.apply(x, split, _sum, _share)


def _shared(x: Any, split: _Split) -> Any:
    """Hands the same to all processes; their gradients are added up."""
    return _Exchange.apply(x, split, _share, _sum)


Style = Callable[[Any, torch.Tensor, _Split], Any]


def _inner(layer: Any, x: torch.Tensor, split: _Split) -> Any:
    """Columns of a layer within a module that shares its input already."""
    if not split.in_sequence:
        x = _shared(x, split)
    return F.linear(x, layer.weight, layer.bias)


def _rows(layer: Any, x: torch.Tensor, split: _Split) -> Any:
    made = _summed(F.linear(x, layer.weight), split)
    return made if layer.bias is None else made + layer.bias


def _whole(layer: Any, x: torch.Tensor, split: _Split) -> Any:
    made = F.linear(_shared(x, split), layer.weight, layer.bias)
    return _Exchange.apply(made, split, _gather_columns, _own_columns)


# What transformers calls them, by the dimension of the weight that is divided.
_STYLES: dict[str, tuple[int, Style]] = {
    "colwise": (0, _inner),
    "rowwise": (1, _rows),
    "colwise_gather_output": (0, _whole),
    "colwise_rep": (0, _whole),
}


@contextmanager
def _divided(model: nn.Module, blocks: nn.ModuleList, split: _Split) -> Iterator[None]:
    """The model with the part of its linear layers that one process has."""
    before: list[tuple[nn.Module, dict[str, Any], Any]] = []

    def remember(module: nn.Module) -> None:
        before.append((module, dict(module._parameters), module.__dict__.copy()))

    try:
        parents: dict[str, nn.Module] = {}
        for path, style in _plan_of(model).items():
            for name, layer in _matching(model, path):
                remember(layer)
                _divide(layer, name, style, split)
                if style == "colwise":
                    parent = name.rpartition(".")[0]
                    parents[parent] = model.get_submodule(parent)
        if split.in_sequence:
            for parent in parents.values():
                remember(parent)
                _enter_by(parent, lambda x: _shared(x, split))
            remember(blocks[0])
            there_and_back = split, _own_part, _share
            _enter_by(blocks[0], lambda x: _Exchange.apply(x, *there_and_back))
        yield
    finally:
        for layer, parameters, attributes in reversed(before):
            layer.__dict__.clear()
            layer.__dict__.update(attributes)
            layer._parameters.update(parameters)


def _enter_by(module: nn.Module, change: Callable[[Any], Any]) -> None:
    """Change the first argument of a module, however it is passed."""
    run: Any = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if args:
            return run(change(args[0]), *args[1:], **kwargs)
        first = next(iter(kwargs))
        return run(**{**kwargs, first: change(kwargs[first])})

    module.forward = forward


def _divide(layer: Any, path: str, style: str, split: _Split) -> None:
    ways = split.ways
    if style not in _STYLES or not isinstance(layer, nn.Linear):
        raise InvalidArgumentError(
            f"a mesh with tp={ways}",
            f"{path} is to be divided {style!r}, which is not known here",
            f"Known for linear layers: {', '.join(_STYLES)}",
        )
    dim, run = _STYLES[style]
    for name, value in list(layer._parameters.items()):
        if value is None or (name == "bias" and dim == 1):
            continue
        if value.shape[dim] % ways:
            raise InvalidArgumentError(
                f"a mesh with tp={ways}",
                f"{path}.{name} has {value.shape[dim]} rows or columns",
                f"Use a divisor of {value.shape[dim]}",
            )
        part = value.detach().chunk(ways, dim)[0].clone()
        layer._parameters[name] = nn.Parameter(part, requires_grad=value.requires_grad)
    layer.forward = lambda input: run(layer, input, split)


def _plan_of(model: nn.Module) -> dict[str, str]:
    """How the model says that its layers are divided."""
    inner = getattr(getattr(model, "config", None), "base_model_tp_plan", None)
    if not inner:
        raise InvalidArgumentError(
            "a mesh with tp > 1",
            f"{type(model).__name__} does not say how its layers are divided",
            "Use a transformers model that has a base_model_tp_plan, or dp alone",
        )
    prefix = getattr(model, "base_model_prefix", "")
    prefix = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    plan = {prefix + path: style for path, style in inner.items()}
    return plan | dict(getattr(type(model), "_tp_plan", None) or {})


def _matching(model: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    pattern = re.compile(re.escape(path).replace(r"\*", r"\d+") + "$")
    return [(name, m) for name, m in model.named_modules() if pattern.match(name)]
