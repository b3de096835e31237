"""The optimizer's update as ops of the backward, each right where its gradient is done.

Normally every gradient waits for `optimizer.step()`. With `update="in_backward"` each
is consumed as soon as it is complete: an op of the captured graph reads it, changes the
parameter and its state in place, and the gradient's bytes are free. What it computes is
the optimizer's own update of that one parameter, so the bits are those of
`optimizer.step()`; learning rates are read when it runs, so schedulers work.

In place of the gradient the parameter gets a stand-in that raises at every use, so that
clipping, scaling, logging or accumulating is an error and not a silent nothing. The
user's own `optimizer.step()` takes the stand-ins away and finds nothing left to do.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from lowtide.engine.capture.nodes import (
    gradient_of,
    inputs_of,
    is_view,
    outputs_of,
    reached,
)
from lowtide.engine.costs.living import living
from lowtide.engine.costs.optimizer import (
    step_without_hooks,
    update_bytes,
    without_hooks,
)
from lowtide.errors import InvalidArgumentError

_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adafactor,
    torch.optim.RMSprop,
)
_ASKED = 'update="in_backward"'

_library = torch.library.Library("lowtide", "DEF")
_library.define("update_(Tensor(a!) parameter, Tensor gradient, int number) -> ()")
UPDATE = torch.ops.lowtide.update_.default

# What the graphs name by number; a number is never used twice.
_UPDATES: weakref.WeakValueDictionary[int, Update] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class Consumed(torch.Tensor):
    """Stands where a gradient was that its update has consumed."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Setting, reading and asking for `.grad` itself is no use of it.
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__", "__repr__", "_is_view"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise InvalidArgumentError(
            f"{name} of a gradient, with {_ASKED}",
            "the gradient was consumed by its update, in the backward",
            "Leave clipping, scaling, logging and accumulation of gradients out, call "
            "optimizer.step() after every backward, or leave update= out",
        )


class Update:
    """The update of one parameter by its optimizer."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter
    ) -> None:
        self.optimizer, self.parameter = optimizer, parameter
        self.place = next(
            place
            for place, group in enumerate(optimizer.param_groups)
            if any(p is parameter for p in group["params"])
        )
        # Its groups and its state are set before each step.
        self.alone = without_hooks(optimizer)
        self.number = next(_NUMBERS)
        _UPDATES[self.number] = self
        # What it needs beside parameter, gradient and state.
        self.prepare()
        self.temporaries = update_bytes(self.alone).temporaries

    def run(self, gradient: torch.Tensor) -> None:
        """What `optimizer.step()` would do for this parameter."""
        parameter = self.parameter
        if isinstance(parameter.grad, Consumed):
            raise _second_backward()
        self.prepare()
        parameter.grad = gradient
        try:
            step_without_hooks(self.alone)
        finally:
            parameter.grad = None
        stand_in = parameter.new_empty(()).expand(parameter.shape)
        parameter.grad = stand_in.as_subclass(Consumed)

    def prepare(self) -> None:
        """Take settings and state as they are now: loading a state replaces both."""
        group = self.optimizer.param_groups[self.place]
        self.alone.state = self.optimizer.state
        self.alone.param_groups = [{**group, "params": [self.parameter]}]


def _update(parameter: torch.Tensor, gradient: torch.Tensor, number: int) -> None:
    del parameter  # the same one, as autograd sees it
    with torch.no_grad():
        _UPDATES[number].run(gradient)


_library.impl("update_", _update, "CompositeExplicitAutograd")
_library.impl("update_", lambda parameter, gradient, number: None, "Meta")


class Updates:
    """The updates of a model's parameters, put into its graphs.

    Args:
        optimizer: Whose updates they are.

    Raises:
        InvalidArgumentError: its updates cannot run one by one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        if not isinstance(optimizer, _OPTIMIZERS):
            names = ", ".join(kind.__name__ for kind in _OPTIMIZERS)
            what = "none" if optimizer is None else type(optimizer).__name__
            raise InvalidArgumentError(
                f"{_ASKED} with the optimizer {what}",
                f"only {names} are known to update each parameter by itself",
                "Pass one of them as optimizer=, or leave update= out",
            )
        self.optimizer = optimizer
        self.updates: dict[int, Update] = {}
        self.trained = {
            id(p): p for group in optimizer.param_groups for p in group["params"]
        }
        optimizer.register_step_pre_hook(self.clear)

    def clear(self, *_: Any) -> None:
        """Before the user's own step: there is nothing left to do for these."""
        for parameter in self.trained.values():
            if isinstance(parameter.grad, Consumed):
                parameter.grad = None

    def check(self, modules: Sequence[nn.Module]) -> None:
        """Raise if a step that begins now could not be updated in its backward."""
        if any(isinstance(p.grad, Consumed) for p in self.trained.values()):
            raise _second_backward()
        if any(p.grad is not None for p in self.trained.values()):
            self.refuse("a parameter has a gradient already, which it would add to")
        if any(p._backward_hooks for p in self.trained.values()):
            self.refuse("a parameter has a hook on its gradient")
        if self.trained.keys().isdisjoint(
            id(p) for m in modules for p in m.parameters()
        ):
            self.refuse("the optimizer has none of the model's parameters")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.refuse("gradients are exchanged between processes")
        scalers = [] if self.updates else living(torch.amp.GradScaler)
        if any(scaler.is_enabled() for scaler in scalers):
            self.refuse("there is a GradScaler, which may skip a step")

    def refuse(self, reason: str) -> None:
        raise InvalidArgumentError(
            f"lowtide.optimize({_ASKED})",
            reason,
            "Leave update= out, or change that",
        )

    def insert(self, joint: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Put an update behind each gradient of a parameter, and take the gradient out.

        It stands after everything that reads the parameter.
        """
        graph = joint.graph
        output = graph.output_node()
        values, descriptions = outputs_of(joint)
        primals = inputs_of(joint)
        places = {node: number for number, node in enumerate(graph.nodes)}
        for place, (node, what) in enumerate(zip(values, descriptions, strict=True)):
            of = gradient_of(what)
            if of is None or not isinstance(node, fx.Node):
                continue
            parameter = self.trained.get(id(inputs[of]))
            if parameter is None or values.count(node) > 1:
                continue
            primal = primals[of]
            last = max(
                (n for n in _readers(primal) | {node} if n is not output),
                key=lambda n: places[n],
            )
            own = self.updates.get(id(parameter))
            if own is None:
                own = self.updates[id(parameter)] = Update(self.optimizer, parameter)
            with graph.inserting_after(last):
                made = graph.call_function(UPDATE, (primal, node, own.number))
            made.meta = {"val": None, "partitioner_tag": "is_backward"}
            made.meta["temporaries"] = own.temporaries
            values[place] = None
        output.args = (tuple(values),)
        joint.recompile()


def _second_backward() -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a second backward with {_ASKED}",
        "optimizer.step() has not been called since the last one, which has already "
        "updated the parameters",
        "Call optimizer.step() after every backward; gradients cannot be accumulated "
        "this way",
    )


def _readers(node: fx.Node) -> set[fx.Node]:
    """What reads a value or a view of it."""
    return reached(node.users, lambda n: n.users if is_view(n) else ())
