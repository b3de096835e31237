"""A captured graph as tables: its ops, its storages, and what enters and leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx
from torch._library.fake_class_registry import FakeScriptObject
from torch.types import py_sym_types

from lowtide.engine.capture.tensors import tensors_in
from lowtide.engine.forms.packing import Packing
from lowtide.engine.seam import opaque_base
from lowtide.step.graph import StepGraph, Storage

if TYPE_CHECKING:
    from lowtide.engine.capture.call import Call
    from lowtide.engine.forms.head import Head

Variant = Literal["plain", "replay", "masked", "without_statistics", "unpack", "form"]
# What a node that holds no tensor may hold: a number, or one that may change.
NUMBERS = (int, float, *py_sym_types)

# What else it may hold: an object that is handed on as it is, such as a device mesh.
OBJECTS = (FakeScriptObject, torch.ScriptObject, opaque_base())

# Why an update, whose first argument is the parameter, runs once.
UPDATES = "updates a parameter"
# Why an exchange with other processes runs once, and in the same order everywhere.
COLLECTIVE = "talks to other processes"


@dataclass(frozen=True, slots=True)
class Follower:
    """An elementwise op that runs right behind another and overwrites its result.

    `target` is the in-place form of `node`'s op; it takes what it overwrites, which is
    `argument`, as its first argument, or once more under the keyword `out`. `over` is
    the storage that its result replaces.
    """

    node: fx.Node
    argument: fx.Node
    over: int
    target: Any
    out: str


@dataclass(frozen=True, slots=True)
class Packed:
    """A storage that can be packed into another; `node` is the value that it holds."""

    node: fx.Node
    storage: int
    packed: int
    how: Packing


@dataclass(frozen=True, slots=True)
class Form:
    """Another way to compute what several ops do together.

    `call(*given, parts)` returns the `results`, in order; nodes among what is given
    stand for their values. It costs what the ops that it is `made_of` cost. Whether it
    gives the same bits depends on the `head` (see `forms/head.py`). Behind its results
    it `leaves` storages that the captured graph does not know, for another form, which
    `takes` them behind what it is given, with whether it may write over the first.
    """

    name: str
    call: Callable[..., Any]
    given: tuple[Any, ...]
    results: tuple[fx.Node, ...]
    made_of: tuple[PieceOp, ...]
    head: Head
    leaves: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()


@dataclass(slots=True)
class PieceOp:
    """An op of a piece: which fx node it runs, and in which form.

    `then` are the elementwise ops folded into it, which overwrite one of its results.
    `state` is the storage of the generator state that a random op starts from, if it
    can be replayed. `packs` are those of its results of which it can leave a packed
    copy; an unpacking op makes the one that it has. `over` is the storage that it can
    write its result over if nobody reads that afterwards, or -1 (see `loss.py`).
    `form` is what it runs if it is a form of other ops.
    """

    node: fx.Node
    variant: Variant
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    once: str = ""
    is_forward: bool = True
    then: tuple[Follower, ...] = ()
    state: int = -1
    packs: tuple[Packed, ...] = ()
    over: int = -1
    form: Form | None = None

    @property
    def standby(self) -> bool:
        """Whether only a plan runs it, never the baseline."""
        return self.variant != "plain"


@dataclass(slots=True, eq=False)
class Piece:
    """A captured graph with its tables.

    `bases` holds for a storage the fx node whose value spans it. `absent_tangents` are
    the tangents that this reading of the graph takes to be zero:
    outputs returned beside a loss that nobody differentiates. `held_outputs` are the
    storages of what it returns; `let_go` are those of them that the caller was seen to
    drop before the backward, until it `is_held` after all. `kept_bytes` is what its
    forward keeps for its backward once it is planned, `step` what `step_of` made of
    it. `unfolded` are the ops as eager
    runs them, each with a result of its own. `formulas` hold the bytes of storages
    whose sizes are symbols; `alike` has values like those storages that the captured
    graph does not know, unless they hold bytes. A piece that `is_resized` has other
    sizes than its nodes (see `shapes.py`). `calls` is what to measure for the cost of
    each op of the step, where these are not the calls of the piece's ops; `scratch` are
    the bytes that these were seen to need inside, and `beside_bytes` is what running
    the piece takes beyond its step.
    """

    joint: fx.GraphModule
    forward_outputs: list[Any]
    gradients: list[Any]
    mutated_inputs: dict[int, int]
    absent_tangents: frozenset[int]
    held_outputs: tuple[int, ...] = ()
    let_go: frozenset[int] = frozenset()
    is_held: bool = False
    kept_bytes: int = 0
    step: StepGraph | None = None
    storages: list[Storage] = field(default_factory=list)
    ops: list[PieceOp] = field(default_factory=list)
    unfolded: list[PieceOp] = field(default_factory=list)
    primals: list[fx.Node] = field(default_factory=list)
    tangents: list[fx.Node] = field(default_factory=list)
    views: set[fx.Node] = field(default_factory=set)
    storage_of: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    nodes_of: dict[int, list[fx.Node]] = field(default_factory=dict)
    bases: dict[int, fx.Node] = field(default_factory=dict)
    formulas: dict[int, Any] = field(default_factory=dict)
    alike: dict[int, torch.Tensor] = field(default_factory=dict)
    is_resized: bool = False
    calls: dict[int, list[Call]] = field(default_factory=dict)
    scratch: dict[int, int] = field(default_factory=dict)
    beside_bytes: int = 0

    @property
    def arriving_tangents(self) -> list[fx.Node]:
        """The tangents that are not taken to be zero."""
        absent = self.absent_tangents
        return [n for place, n in enumerate(self.tangents) if place not in absent]

    def storages_in(self, values: Iterable[Any]) -> tuple[int, ...]:
        """The storages of these values, each once; what is no node has none."""
        known = self.storage_of
        return tuple(dict.fromkeys(s for node in values for s in known.get(node, ())))


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The (fake) tensors among a node's values."""
    return tensors_in(node.meta.get("val"))


def is_number(node: fx.Node) -> bool:
    """Whether its value is a number that may change, and no tensor."""
    return isinstance(node.meta.get("val"), NUMBERS)


def is_object(node: fx.Node) -> bool:
    """Whether its value is neither a tensor nor a number."""
    return isinstance(node.meta.get("val"), OBJECTS)
