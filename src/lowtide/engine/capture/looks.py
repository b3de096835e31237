"""Code that branches on the values of its inputs is captured as it goes for this batch.

`if mask.all():` decides something by values, where dynamo ends the graph. If the value
is computed from an input of the call alone, it is known before anything runs, so the
branch that eager takes is captured, and a guard asks the same of later batches: where
they answer otherwise, the step is captured for them as well. So transformers leave out
a mask that hides nothing, and compute what they compute in eager.

NOTE(torch>=2.13,<2.16): dynamo's jumps are found in a table of its translators. What
they jump by is on top of the `stack`; its node is in the graph captured so far, whose
placeholders know where they come from (`grapharg`).
"""

from __future__ import annotations

import dis
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.guards import install_guard
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import ConstantVariable, TensorVariable
from torch._guards import Guard, Source
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lowtide.engine.capture.nodes import made_from
from lowtide.engine.capture.questions import is_capturing, value_of_input

# More than this is no question about an input, and not for a guard to ask each time.
_MOST_OPS = 32
_take_item: Any = TensorVariable.method_item
_CALLS = {"call_function", "call_method"}
_IN_PLACE = {operator.setitem, operator.delitem} | {
    getattr(operator, f"i{name}")
    for name in "add and concat floordiv lshift matmul mod mul or pow rshift sub "
    "truediv xor".split()
}


class Look:
    """A value that code looks at, as a function of one input or of its sizes.

    Of what is made of constants alone there is none to be `given`.
    """

    def __init__(self, wanted: fx.Node, given: fx.Node | None) -> None:
        needed = made_from([wanted])
        self.sizes: list[str] = []
        if given is not None:
            self.sizes = [str(size) for size in given.meta["example_value"].shape]
        # A copy: the guard outlives the captured graph.
        self.graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in wanted.graph.nodes:
            if node in needed:
                size = node.meta.get("example_value")
                copy = self.graph.node_copy(node, copies.__getitem__)
                copy.meta = {"size": size} if isinstance(size, torch.SymInt) else {}
                copies[node] = copy
        self.wanted = copies[wanted]

    def __call__(self, value: torch.Tensor | None) -> bool:
        """The answer for this input."""
        sizes = dict(zip(self.sizes, () if value is None else value.shape, strict=True))
        made: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in self.graph.nodes:
                if "size" in node.meta:
                    made[node] = _size(node.meta["size"], sizes)
                else:
                    is_given = node.op == "placeholder"
                    made[node] = value if is_given else _run(node, made)
            return bool(made[self.wanted])


def _size(wanted: torch.SymInt, known: Mapping[str, int]) -> int:
    """A size that is computed from those of the input."""
    expression = wanted.node.expr
    return int(expression.subs({s: known[str(s)] for s in expression.free_symbols}))


def _run(node: fx.Node, made: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), made.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def input_of(wanted: fx.Node) -> fx.Node | None:
    """The tensor among the inputs of a graph that a value can be told from.

    Raises:
        LookupError: there is more to it than one input.
    """
    needed = made_from([wanted])
    inputs = _tensors(needed)
    calls = [n for n in needed if n.op != "placeholder"]
    if len(inputs) > 1 or len(calls) > _MOST_OPS or {n.op for n in calls} - _CALLS:
        raise LookupError
    if inputs:
        if _changes_any(wanted.graph.nodes, inputs[0]):
            raise LookupError
        return inputs[0]
    sizes = {str(s) for n in needed for s in _symbols(n.meta.get("example_value"))}
    if not sizes:
        return None
    for node in _tensors(wanted.graph.nodes):
        if sizes <= {str(size) for size in node.meta["example_value"].shape}:
            return node
    raise LookupError


def _symbols(value: Any) -> Iterable[Any]:
    return value.node.expr.free_symbols if isinstance(value, torch.SymInt) else ()


def _tensors(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The inputs among some nodes that are no sizes."""
    given = [n for n in nodes if n.op == "placeholder"]
    return [n for n in given if isinstance(n.meta["example_value"], torch.Tensor)]


def _changes_any(nodes: Iterable[fx.Node], given: fx.Node) -> bool:
    """Whether something is written in place into what is made from an input."""
    calls = (n for n in nodes if n.op in _CALLS)
    return any(_writes(n) and given in made_from([n]) for n in calls)


def _writes(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", node.target)
    is_named_so = name.endswith("_") and not name.endswith("__")
    return is_named_so or node.target in _IN_PLACE or "out" in node.kwargs


class _OnlyWhatIsAlwaysTheSame(TorchDispatchMode):
    """Raises before an op runs that draws, or of which nobody knows what it does."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws or func.namespace != "aten":
            raise LookupError(f"{func} may answer otherwise next time")
        return func(*args, **(kwargs or {}))


def _answer(tx: Any, value: Any) -> bool | None:
    """What the code would see in eager, if an input of the call tells it."""
    tracer, wanted = tx.output.current_tracer, value.proxy.node
    if not is_capturing() or tracer.parent is not None:
        return None
    if wanted.graph is not tracer.graph:
        return None
    try:
        given = input_of(wanted)
    except LookupError:
        return None
    look, real, source = Look(wanted, given), None, None
    if given is not None:
        argument = given.meta["grapharg"]
        real, source = value_of_input(argument.example), argument.source
        if real is None or source is None:
            return None
    try:
        with _disable_current_modes(), _OnlyWhatIsAlwaysTheSame():
            found = look(real)
    except Exception:
        return None  # whatever it is, eager will raise it
    if source is not None:
        _guard(source, look, found)
    return found


def _guard(source: Source, look: Look, found: bool) -> None:
    """Capture again for an input of which this is not true."""

    def still(value: Any) -> bool:
        if isinstance(value, FakeTensor):
            return True  # a dry run, which is one call
        try:
            return look(value) is found
        except Exception:
            return False  # another kind of input, as other guards will find too

    def value_is_as_captured(builder: Any, guard: Guard) -> None:
        text = f"a value computed from {source.name} is {found}"
        manager = builder.get_guard_manager(guard)
        manager.add_lambda_guard(still, [text], guard.user_stack)

    install_guard(source.make_guard(value_is_as_captured))


def _looking_first(
    name: str, instruct: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    """An instruction that goes by the value of an input, if it can."""

    def by_value(tx: Any, instruction: Any) -> None:
        value, height = tx.stack[-1], len(tx.stack)
        found = _answer(tx, value) if value.is_tensor() else None
        if found is None:
            return instruct(tx, instruction)
        tx.stack[-1] = ConstantVariable.create(found)
        instruct(tx, instruction)
        if "OR_POP" in name and len(tx.stack) == height:
            tx.stack[-1] = value  # `a or b` is the tensor itself

    return by_value


def _translators(of: type) -> Sequence[type]:
    return [of, *(t for child in of.__subclasses__() for t in _translators(child))]


def _item(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    # A truth has two values; for each number there would be another graph.
    is_truth = variable.dtype is torch.bool
    found = _answer(tx, variable) if is_truth else None
    if found is None:
        return _take_item(variable, tx, *args, **kwargs)
    return ConstantVariable.create(found)


def _asks_for_truth(name: str) -> bool:
    words = set(name.split("_"))
    return name == "UNARY_NOT" or ("JUMP" in words and bool(words & {"TRUE", "FALSE"}))


def look_at_inputs() -> None:
    """Let dynamo answer by the values of inputs, on threads that ask for it."""
    TensorVariable.method_item = _item  # type: ignore[method-assign]
    for translator in _translators(InstructionTranslatorBase):
        table: list[Any] = translator.dispatch_table  # type: ignore[attr-defined]
        for name, number in dis.opmap.items():
            if _asks_for_truth(name):
                table[number] = _looking_first(name, table[number])
