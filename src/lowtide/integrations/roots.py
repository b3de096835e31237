"""Plans the models that a program trains, by watching which ones it calls.

A root is a module that is called from outside of any other, in training mode and with
gradients. Watching costs one check for each such call: while a root runs, its parts are
called as ever.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from lowtide.engine.api import optimize, planned, restore
from lowtide.engine.call.methods import is_trained_by_method
from lowtide.engine.notices import warn

# What wraps a model, and where it has it. The model is planned inside of it.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "_FabricModule": "_forward_module",
}
_PLAIN_CALL = nn.Module.__call__
_asked: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()
_asked_for_all: list[dict[str, Any]] = []
_settled: WeakSet[nn.Module] = WeakSet()
_optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
planned_names: list[str] = []


def plan_when_called(model: nn.Module, **options: Any) -> None:
    """Plan the root that this model is, or is part of, at its first training call.

    The options are those of `lowtide.optimize`.
    """
    _asked[model] = options
    nn.Module.__call__ = _watched_call  # type: ignore[method-assign]


def plan_what_is_trained(**options: Any) -> None:
    """Plan each root that has parameters in an optimizer made from now on."""
    make = torch.optim.Optimizer.__init__

    @functools.wraps(make)
    def made(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _optimizers.add(self)

    torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign]
    _asked_for_all.append(options)
    nn.Module.__call__ = _watched_call  # type: ignore[method-assign]


def plan(model: nn.Module, *optimizers: torch.optim.Optimizer, **options: Any) -> None:
    """`lowtide.optimize`, once for a model. One optimizer's state counts as well."""
    if planned(model) is None:
        (optimizer,) = optimizers if len(optimizers) == 1 else (None,)
        # accelerate and Lightning wrap the optimizer.
        optimizer = getattr(optimizer, "optimizer", optimizer)
        optimize(model, optimizer=optimizer, **options)
    _settled.update(model.modules())
    planned_names.append(type(model).__name__)


def _watched_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return _PLAIN_CALL(self, *args, **kwargs)
    if self.training and torch.is_grad_enabled() and self not in _settled:
        _consider(self)
    nn.Module.__call__ = _PLAIN_CALL  # type: ignore[method-assign]
    try:
        return _PLAIN_CALL(self, *args, **kwargs)
    finally:
        nn.Module.__call__ = _watched_call  # type: ignore[method-assign]


def _consider(root: nn.Module) -> None:
    """Plan a root that is not settled yet, if that was asked for."""
    options = _options_for(root)
    if options is None:
        return
    _settled.update(root.modules())
    model = _inside(root)
    # A wrapper that calls training_step puts it in the place of the model's forward.
    if is_trained_by_method(model) and "forward" not in vars(model):
        restore(model)
        warn(
            f"lowtide: {type(model).__name__} is called itself, and not its "
            "training_step. It runs as it is, under no budget."
        )
    else:
        plan(model, *_optimizers_of(model), **options)


def _options_for(root: nn.Module) -> dict[str, Any] | None:
    parts = set(root.modules())
    for model, options in _asked.items():
        if model in parts:
            return options
    return _asked_for_all[-1] if _asked_for_all and _optimizers_of(root) else None


def _inside(root: nn.Module) -> nn.Module:
    name = _WRAPPERS.get(type(root).__name__)
    return root if name is None else _inside(getattr(root, name))


def _optimizers_of(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers that have some of its parameters."""
    own = {id(p) for p in model.parameters() if p.requires_grad}

    def has_some(optimizer: torch.optim.Optimizer) -> bool:
        groups = optimizer.param_groups
        return any(id(p) in own for group in groups for p in group["params"])

    return [each for each in _optimizers if own and has_some(each)]
