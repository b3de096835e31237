"""Find the op at which a planned step begins to differ from the plain one.

The plain step is run once more, and a checksum of everything its ops make is noted.
Then the planned step is run op by op. An op whose results never occur in the plain
step, though all that it reads does, and which reaches what its graph returns, is where
the difference arises. An op that is only written in another way makes nothing that is
returned, or at least one result that does occur.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

from lowtide.engine.bits import checksum
from lowtide.engine.capture.call import module_of
from lowtide.engine.capture.nodes import reached
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.tensors import Seeing, tensors_in
from lowtide.engine.checks.meter import preserved
from lowtide.engine.forms.draws import draw, draw_again, generator_state
from lowtide.engine.forms.overwrite import write_over
from lowtide.engine.graphs.others import surroundings_of
from lowtide.engine.graphs.watch import Watch
from lowtide.step.graph import Phase

Step = Callable[[], torch.Tensor]
_Mark = tuple[torch.dtype, int, int]


def origin_of(
    plain: Step, planned: Step, modules: list[nn.Module], watch: Watch
) -> str:
    """The op where the planned step begins to differ, or nothing if none is found."""
    occurs = _Occurring()
    with preserved(modules), occurs:
        plain()
        occurs.note([p.grad for m in modules for p in m.parameters()])
    found: list[str] = []

    def examine(
        piece: Piece, phase: Phase, args: list[Any], run: Callable[..., Any]
    ) -> Any:
        """Run one half of a graph op by op, and note the first op that is wrong."""
        del piece
        module: fx.GraphModule = run.module  # type: ignore[attr-defined]
        marker = _Marker(module, occurs)
        values = list(args)
        args.clear()
        with surroundings_of(module):
            outputs = marker.run(*values, enable_io_processing=False)
        if (node := marker.first_wrong()) is not None:
            found.append(f"{_name_of(node)} in the {phase}")
        return outputs

    before, watch.around = watch.around, examine
    try:
        with preserved(modules):
            planned()
    finally:
        watch.around = before
    return next(iter(found), "")


def _mark(value: torch.Tensor) -> _Mark:
    return value.dtype, value.numel(), checksum(value)


class _Occurring(Seeing):
    """Notes what the ops of a step read and make."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: set[_Mark] = set()

    def see(self, op: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        self.note((args, kwargs, outputs))

    def note(self, tree: Any) -> None:
        self.marks.update(map(_mark, tensors_in(tree)))

    def has_any(self, value: Any) -> bool:
        """Whether one of these tensors occurs, or there is none."""
        tensors = tensors_in(value)
        return not tensors or any(_mark(t) in self.marks for t in tensors)


class _Marker(fx.Interpreter):
    """Notes which nodes of a graph have values that do not occur."""

    def __init__(self, module: fx.GraphModule, occurs: _Occurring) -> None:
        super().__init__(module)
        self.code: fx.Graph = module.graph
        self.occurs = occurs
        self.wrong: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        # What comes in was judged where it was made; states are no values of the step.
        is_made = n.op == "call_function" and n.target is not generator_state
        if is_made and not self.occurs.has_any(value):
            self.wrong.add(n)
        return value

    def first_wrong(self) -> fx.Node | None:
        """The first op that makes something wrong of nothing wrong, and is returned."""
        returned = reached([self.code.output_node()], self._wrong_inputs)
        found = (n for n in self.code.nodes if n in returned & self.wrong)
        return next(
            (n for n in found if self.wrong.isdisjoint(n.all_input_nodes)), None
        )

    def _wrong_inputs(self, node: fx.Node) -> Iterator[fx.Node]:
        for given in node.all_input_nodes:
            # An item may be what the plain step never has apart, such as a mask.
            whole = given.args[0] if given.target is operator.getitem else given
            if given in self.wrong and whole in self.wrong:
                yield given


def _name_of(node: fx.Node) -> str:
    """What the user knows an op by: its name and its module."""
    target: Any = node.target
    if target in (draw, draw_again):
        target = node.args[1]
    elif target is write_over:
        target = node.args[3]
    name = getattr(target, "__name__", str(target)).split(".")[0]
    module = module_of(node)
    return f"{name} of {module}" if module else name
