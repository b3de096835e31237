"""Models that are trained through a method: Lightning calls `training_step`.

The planned call stands where the method was, in the `__dict__` of the model. `self.log`
belongs to Lightning's own bookkeeping and would cut the captured graph, so its calls
are noted while the step runs, and made when it has run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowtide.engine.call.runtime import PlannedCall
from lowtide.engine.planning.settings import Settings
from lowtide.errors import NoTrainingGraphError
from lowtide.step.plan import Plan

METHOD = "training_step"
_LOGS = ("log", "log_dict")


def is_trained_by_method(model: nn.Module) -> bool:
    """Whether a trainer calls a method of this model, and not the model."""
    return any(base.__name__ == "LightningModule" for base in type(model).__mro__)


def method_of(model: nn.Module) -> Any:
    """The method as the model's author wrote it."""
    method = getattr(model, METHOD)
    return method.__wrapped__ if isinstance(method, PlannedMethod) else method


class PlannedMethod(PlannedCall):
    """The `training_step` of a model, planned. `__wrapped__` is the method itself."""

    def __init__(
        self, model: nn.Module, asked: Settings | Plan, check: Any = None
    ) -> None:
        if not getattr(model, "automatic_optimization", True):
            raise NoTrainingGraphError(
                f"lowtide.optimize({type(model).__name__})",
                "it sets automatic_optimization = False, so its training_step runs the "
                "backward itself and cannot be planned as a whole",
                "Optimize the networks inside it, as in "
                "lowtide.optimize(lightning_module.net, budget=...)",
            )
        self.model = model
        self.notes = notes = []
        self.__wrapped__ = method = method_of(model)

        def step(*args: Any, **kwargs: Any) -> Any:
            notes.clear()  # a dry run may have left some
            return method(*args, **kwargs)

        super().__init__(step, asked, [model], check)
        self.planning.name = f"lowtide.optimize({type(model).__name__})"
        self.watch_for_bypass(model)
        vars(model)[METHOD] = self

    never_called = "training_step was never called"
    instead = (
        "Optimize what is called: the network inside, or the function that computes "
        "the loss"
    )

    def installed_in(self, model: nn.Module) -> Any:
        """This, if it still stands where the method was."""
        return self if vars(model).get(METHOD) is self else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method, planned if it is a training call; then log."""
        own = vars(self.model)
        logs = {name: getattr(self.model, name) for name in _LOGS}
        shadowed = {name: own[name] for name in _LOGS if name in own}
        for name in _LOGS:
            own[name] = _Note(self.notes, name)
        try:
            outputs = super().__call__(*args, **kwargs)
        finally:
            for name in _LOGS:
                del own[name]
            own.update(shadowed)
        for name, given, named in self.notes:
            logs[name](*given, **named)
        self.notes.clear()
        return outputs

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A copy of the model, or the model in another process, is not planned."""
        return getattr, (self.model, METHOD)


class _Note:
    """Stands where a method for logging was."""

    def __init__(self, notes: list[Any], name: str) -> None:
        self.notes, self.name = notes, name

    def __call__(self, *given: Any, **named: Any) -> None:
        # What is logged needs no gradient; as it is, the plan would make room for one.
        given, named = pytree.tree_map_only(
            torch.Tensor, torch.Tensor.detach, (given, named)
        )
        self.notes.append((self.name, given, named))
