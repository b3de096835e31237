"""What is asked of fx graphs: what goes in and out, what leads where, what has effects.

NOTE(torch>=2.13,<2.16): `desc` records say what each input and output is, and the
placeholders of the gradients that come from outside are named `tangents_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import GradAOTOutput, PlainAOTInput
from torch.utils import _pytree as pytree


def inputs_of(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def tangents_of(module: fx.GraphModule) -> list[fx.Node]:
    """Those of them that are gradients from outside."""
    return [n for n in inputs_of(module) if n.name.startswith("tangents")]


def outputs_of(module: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """A graph's outputs, and what torch says that each of them is."""
    (output,) = module.graph.find_nodes(op="output")
    flat = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    return flat, list(output.meta.get("desc") or [None] * len(flat))


def gradient_of(description: Any) -> int | None:
    """The place of the input whose gradient an output is, if it is one."""
    if not isinstance(description, GradAOTOutput):
        return None
    of = description.grad_of
    return of.idx if isinstance(of, PlainAOTInput) else None


def owner_of(description: Any) -> int | None:
    """The place of the input that an input or gradient belongs to.

    A tensor that is made of others, such as a part of one that is spread over
    processes, is captured as its parts.
    """
    while hasattr(description, "base"):
        description = description.base
    description = getattr(description, "grad_of", description)
    while hasattr(description, "base"):
        description = description.base
    return description.idx if isinstance(description, PlainAOTInput) else None


def reached(
    roots: Iterable[fx.Node], onward: Callable[[fx.Node], Iterable[fx.Node]]
) -> set[fx.Node]:
    """The roots, and all that is reached from them by going onward."""
    seen: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(onward(node))
    return seen


def made_from(roots: Sequence[Any]) -> set[fx.Node]:
    """The nodes among the roots, and all that these are computed from."""
    nodes = [r for r in roots if isinstance(r, fx.Node)]
    return reached(nodes, lambda node: node.all_input_nodes)


def draws_numbers(node: fx.Node) -> bool:
    """Whether it draws random numbers.

    Attention ops carry torch's tag for that, but draw only when they drop out.
    """
    tags: Iterable[Any] = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    schema = getattr(node.target, "_schema", None)
    given = {a.name: a.default_value for a in schema.arguments} if schema else {}
    given |= dict(zip(given, node.args, strict=False)) | dict(node.kwargs)
    return given.get("dropout_p") != 0.0


def is_backward(node: fx.Node) -> bool:
    """Whether torch says that it belongs to the backward."""
    return node.meta.get("partitioner_tag") == "is_backward"


def is_view(node: fx.Node) -> bool:
    """Whether its op returns what lies in its argument's memory."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def has_effect(node: fx.Node) -> bool:
    """Whether it changes something, or draws random numbers."""
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "_schema", None)
    return (schema is not None and schema.is_mutable) or draws_numbers(node)
