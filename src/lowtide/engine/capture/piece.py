"""A captured graph as tables: its ops, its storages, and what enters and leaves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx
from torch.types import py_sym_types
from torch.utils import _pytree as pytree

from lowtide.engine.capture.fold import Follower
from lowtide.step.graph import Kind, StepGraph

Variant = Literal["plain", "replay", "without_statistics"]
# What a node that holds no tensor may hold: a number, or one that may change.
NUMBERS = (int, float, *py_sym_types)


@dataclass(slots=True)
class PieceStorage:
    """A storage of a piece; `base` is the fx node whose value spans it."""

    name: str
    nbytes: int
    kind: Kind
    resident: bool
    shape: tuple[int, ...]
    dtype: str
    base: fx.Node | None
    is_rng_state: bool = False


@dataclass(slots=True)
class PieceOp:
    """An op of a piece: which fx node it runs, and in which form.

    `then` are the elementwise ops folded into it, which overwrite one of its results.
    """

    node: fx.Node
    variant: Variant
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    once: str = ""
    is_forward: bool = True
    then: tuple[Follower, ...] = ()

    @property
    def standby(self) -> bool:
        """Whether only a plan runs it, never the baseline."""
        return self.variant != "plain"


@dataclass(slots=True)
class Piece:
    """A captured graph with its tables.

    `absent_tangents` are the tangents that this reading of the graph takes to be zero:
    outputs returned beside a loss that nobody differentiates. `kept_bytes` is what its
    forward keeps for its backward once it is planned, `step` what `step_of` made of
    it. `unfolded` are the ops as eager
    runs them, each with a result of its own.
    """

    joint: fx.GraphModule
    storages: list[PieceStorage]
    ops: list[PieceOp]
    storage_of: dict[fx.Node, tuple[int, ...]]
    views: set[fx.Node]
    primals: list[fx.Node]
    tangents: list[fx.Node]
    forward_outputs: list[Any]
    gradients: list[Any]
    mutated_inputs: dict[int, int]
    held_outputs: tuple[int, ...]
    absent_tangents: frozenset[int] = frozenset()
    kept_bytes: int = 0
    step: StepGraph | None = None
    unfolded: list[PieceOp] = field(default_factory=list["PieceOp"])
    nodes_of: dict[int, list[fx.Node]] = field(default_factory=dict)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The (fake) tensors among a node's values."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [v for v in leaves if isinstance(v, torch.Tensor)]
