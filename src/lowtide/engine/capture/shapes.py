"""A joint graph whose sizes are symbols: what it is for given values of them.

When dynamo sees a second length it traces once more, with a symbol in the length's
place, and that graph serves all lengths. Everything here reads concrete sizes, so the
symbols are given values first: each node's fake value is replaced by the one it has
for these values, and what it was stays beside it. Comparing symbols would make torch
guard on the answer, and trace again where the answer is another; so symbols are never
compared, only their formulas are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx
from torch.types import py_sym_types
from torch.utils import _pytree as pytree

from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.step import step_of
from lowtide.engine.capture.tensors import result_bytes, storage_key, tensors_in

_SYMBOLIC = "symbolic"


class ResizedError(Exception):
    """A piece was resized, but has to be read anew so that its ops can be measured."""


class Shapes:
    """The symbols among the inputs of a graph, whose fake values are given.

    `places` are theirs among the inputs, `hints` the values they were traced with.
    """

    def __init__(self, inputs: Iterable[Any] = ()) -> None:
        symbols = {
            place: value.node
            for place, value in enumerate(inputs)
            if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol
        }
        self.places = list(symbols)
        self.symbols: list[Any] = [node.expr for node in symbols.values()]
        self.hints: tuple[int, ...] = tuple(node.hint for node in symbols.values())

    def fix(self, joint: fx.GraphModule, values: Sequence[int]) -> None:
        """Give each node the value that it has for these values of the symbols."""
        if not self.symbols:
            return
        nodes = [node for node in joint.graph.nodes if "val" in node.meta]
        for node in nodes:
            node.meta.setdefault(_SYMBOLIC, node.meta["val"])
        found = self.at(values, [node.meta[_SYMBOLIC] for node in nodes])
        for node, value in zip(nodes, found, strict=True):
            node.meta["val"] = value

    def inputs_at(self, values: Sequence[int], inputs: Sequence[Any], mode: Any) -> Any:
        """The inputs of a graph for these values, as fake tensors of one mode."""
        number = self.evaluator(values)

        def concrete(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return number(value)
            if all(isinstance(n, int) for n in (*value.shape, *value.stride())):
                return value
            made = _concrete(value, number, {}, mode)
            return made.requires_grad_(value.requires_grad)

        return [concrete(value) for value in inputs]

    def at(self, values: Sequence[int], tree: Any) -> Any:
        """What fake tensors and numbers are for these values of the symbols."""
        if not self.symbols:
            return tree
        number = self.evaluator(values)
        storages: dict[int, Any] = {}

        def concrete(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return _concrete(value, number, storages, None)
            return number(value)

        return pytree.tree_map(concrete, tree)

    def used_in(self, formulas: Iterable[Any]) -> list[int]:
        """The places of those symbols that these formulas depend on."""
        free = {symbol for f in formulas for symbol in f.free_symbols}
        return [n for n, symbol in enumerate(self.symbols) if symbol in free]

    def knows(self, number: torch.SymInt) -> bool:
        """Whether the symbols of the inputs are all that this depends on."""
        return number.node.expr.free_symbols.issubset(self.symbols)

    def evaluator(self, values: Sequence[int]) -> Callable[[Any], int]:
        """What a number is for these values. An unknown one is left as it is."""
        table = dict(zip(self.symbols, map(sympy.Integer, values), strict=True))
        known: dict[Any, int] = {}

        def number(value: Any) -> Any:
            if isinstance(value, torch.SymInt):
                if not self.knows(value):
                    return value
                value = value.node.expr
            if not isinstance(value, sympy.Basic):
                return value
            if value not in known:
                found: Any = value.xreplace(table)
                known[value] = int(found)
            return known[value]

        return number

    def resized(self, piece: Piece, values: Sequence[int]) -> Piece:
        """The piece with the sizes that it has for other values of the symbols.

        Its ops are the same ones, and what they are measured by stays as it was.
        """
        number, old = self.evaluator(values), step_of(piece)
        storages = list(piece.storages)
        for place, formula in piece.formulas.items():
            storages[place] = replace(storages[place], nbytes=number(formula))
        step = replace(old, storages=tuple(storages))
        row = [step.fingerprint, *old.facts["pieces"][0][1:]]
        step = replace(step, facts={**old.facts, "pieces": [row]})
        return replace(piece, storages=storages, step=step, is_resized=True)


def with_symbols(graph: fx.Graph) -> None:
    """Give the numbers in an emitted graph back their symbols.

    By them AOTAutograd knows numbers from tensors. In tensors it would note which of
    those that are saved have symbols, and what is saved may change.
    """
    for node in graph.nodes:
        if isinstance(value_as_traced(node), py_sym_types):
            node.meta["val"] = value_as_traced(node)


def value_as_traced(node: fx.Node) -> Any:
    """A node's fake value with the symbols that it was traced with."""
    return node.meta.get(_SYMBOLIC, node.meta.get("val"))


def formulas_of(node: fx.Node) -> list[Any]:
    """How many bytes the storage of each of a node's tensors has.

    An input may be a view of something that the graph is not given, whose size has a
    symbol of its own. Then it is what the view spans.
    """
    given = [t for a in node.all_input_nodes for t in _symbolic(a)]
    found: list[Any] = []
    for tensor in _symbolic(node):
        formula = _formula(result_bytes(node.target, given, tensor, _largest))
        layout = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        own = {s for n in map(_formula, layout) for s in sympy.sympify(n).free_symbols}
        is_hidden = not sympy.sympify(formula).free_symbols <= own
        if node.op == "placeholder" and is_hidden:
            formula = sympy.sympify(_formula(_spanned_bytes(tensor)))
        found.append(formula)
    return found


def _spanned_bytes(tensor: torch.Tensor) -> Any:
    """Bytes from the beginning of the storage to the last element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in pairs)
    return (last + 1) * tensor.element_size()


def _symbolic(node: fx.Node) -> list[torch.Tensor]:
    return tensors_in(value_as_traced(node))


def _formula(number: Any) -> Any:
    return number.node.expr if isinstance(number, py_sym_types) else number


def _largest(numbers: Iterable[Any]) -> Any:
    return sympy.Max(*map(_formula, numbers))


def _concrete(
    tensor: Any, number: Callable[[Any], int], storages: dict[int, Any], mode: Any
) -> torch.Tensor:
    """A fake tensor for these values; those that shared a storage share one again."""
    key, storage = storage_key(tensor), tensor.untyped_storage()
    shape, strides = map(number, tensor.shape), map(number, tensor.stride())
    with mode or tensor.fake_mode:
        if key not in storages:
            nbytes = number(storage.nbytes())
            room = torch.empty(nbytes, dtype=torch.uint8, device=tensor.device)
            storages[key] = room.untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = number(tensor.storage_offset())
        return made.set_(storages[key], offset, tuple(shape), tuple(strides))
