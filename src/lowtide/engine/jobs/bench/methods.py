"""Other ways to lower a step's peak, as their own documentation says to use them.

Each is put on a model in place, knowing nothing of the model but its modules.

NOTE(torch>=2.13): torch's memory budget is a setting of AOTAutograd's partitioner. Only
some backends use it; `aot_eager_decomp_partition` is the one without code generation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._functorch import config
from torch.utils import checkpoint as recompute

from lowtide.engine.api import apply
from lowtide.errors import InvalidArgumentError
from lowtide.step.plan import Plan


class NotApplicableError(Exception):
    """This method cannot be put on this model; the text says why."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to run the step. `during_first` surrounds its first, compiling step."""

    name: str
    label: str
    install: Callable[[nn.Module], None]
    during_first: Callable[[], AbstractContextManager[Any]] = nullcontext


BUDGETS = (0.75, 0.5, 0.25, 0.1, 0.0)


def other_methods() -> tuple[Method, ...]:
    """Every method but lowtide's, eager first."""
    return (
        Method("eager", "eager", lambda model: None),
        Method("blocks", "checkpoint blocks", _on_blocks),
        Method("blocks_compiled", "checkpoint blocks, compiled", _on_blocks_compiled),
        Method("sequential", "checkpoint_sequential", _on_sequences),
        Method("selective", "selective checkpoint", _selectively),
        Method("selective_half", "selective, every second", _half_selectively),
        *(_budgeted("torch_budget", "torch budget", b) for b in BUDGETS),
        _budgeted("inductor", "Inductor, budget", 0.5, "inductor"),
    )


USUAL = "eager blocks sequential selective torch_budget_0.5 torch_budget_0.25".split()


def methods_named(names: str) -> tuple[Method, ...]:
    """The methods of a list such as `blocks,selective`; eager is always the first."""
    known = {method.name: method for method in other_methods()}
    if names == "all":
        return tuple(known.values())
    wanted = USUAL if names == "usual" else [n.strip() for n in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidArgumentError(
            f"--methods {names}",
            f"there is no method {unknown[0]!r}",
            f"Write usual, all, or some of {', '.join(known)}",
        )
    return tuple(m for m in known.values() if m.name in wanted or m.name == "eager")


def planned_method(name: str, label: str, plan: Plan) -> Method:
    return Method(name, label, lambda model: apply(model, plan))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The modules that people wrap by hand: the same class again and again.

    Of all classes that occur at least twice, side by side, the one whose instances hold
    nearly the most parameters, in the most parts.
    """
    by_class: dict[type, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        if any(True for _ in module.children()) and type(module) not in _CONTAINERS:
            by_class[type(module)].append(module)
    sizes: list[tuple[int, list[nn.Module]]] = []
    for modules in by_class.values():
        inner = {part for m in modules for part in m.modules() if part is not m}
        outer = [m for m in modules if m not in inner]
        if len(outer) >= 2:
            sizes.append((sum(map(_size, outer)), outer))
    most = max((size for size, _ in sizes), default=0)
    large = [modules for size, modules in sizes if size >= 0.8 * most]
    return max(large, key=len, default=[])


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _on_blocks(model: nn.Module, **how: Any) -> None:
    blocks = repeated_blocks(model)
    if not blocks:
        raise NotApplicableError("no block occurs twice in the model")
    for block in blocks:
        block.forward = partial(  # type: ignore[method-assign]
            recompute.checkpoint, block.forward, use_reentrant=False, **how
        )


def _on_blocks_compiled(model: nn.Module) -> None:
    _on_blocks(model)
    _compiled_with("aot_eager", model)


def _on_sequences(model: nn.Module) -> None:
    sequences = list(_outer_sequences(model))
    if not sequences:
        raise NotApplicableError("the model has no nn.Sequential of four parts or more")
    for sequence in sequences:
        parts = list(sequence)
        sequence.forward = partial(  # type: ignore[method-assign]
            recompute.checkpoint_sequential,
            parts,
            max(2, round(math.sqrt(len(parts)))),
            use_reentrant=False,
        )


def _outer_sequences(module: nn.Module) -> Iterator[nn.Sequential]:
    if isinstance(module, nn.Sequential) and len(module) >= 4 and _size(module):
        yield module
        return
    for child in module.children():
        yield from _outer_sequences(child)


# The ops that the documentation of selective checkpointing keeps: those that compute
# much for the bytes they make.
_EXPENSIVE = (
    *("mm", "addmm", "bmm", "baddbmm", "convolution"),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)


def _kept_ops() -> list[Any]:
    return [getattr(torch.ops.aten, name).default for name in _EXPENSIVE]


def _selectively(model: nn.Module) -> None:
    contexts = partial(recompute.create_selective_checkpoint_contexts, _kept_ops())
    _on_blocks(model, context_fn=contexts)


def _half_selectively(model: nn.Module) -> None:
    """Keep every second expensive result of a block; recomputation counts anew."""
    kept = _kept_ops()

    def contexts() -> Any:
        counts = {False: 0, True: 0}

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            counts[context.is_recompute] += op in kept
            if op in kept and counts[context.is_recompute] % 2:
                return recompute.CheckpointPolicy.MUST_SAVE
            return recompute.CheckpointPolicy.PREFER_RECOMPUTE

        return recompute.create_selective_checkpoint_contexts(policy)

    _on_blocks(model, context_fn=contexts)


def _compiled_with(backend: str, model: nn.Module) -> None:
    model._compiled_call_impl = torch.compile(  # type: ignore[assignment]
        model._call_impl, backend=backend, dynamic=False
    )


def _budgeted(
    name: str, label: str, budget: float, backend: str = "aot_eager_decomp_partition"
) -> Method:
    """A compiler of torch's, whose partitioner reads a setting while it compiles."""
    return Method(
        f"{name}_{budget:g}",
        f"{label} {budget:g}",
        partial(_compiled_with, backend),
        lambda: config.patch(activation_memory_budget=budget),  # type: ignore[attr-defined]
    )
