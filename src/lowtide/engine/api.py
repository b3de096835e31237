"""The public verbs, wired together from the stages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowtide import planners
from lowtide.engine.costs import with_optimizer
from lowtide.engine.meter import (
    Measurement,
    allocated_peak,
    median,
    preserved,
    rss_peak,
    rss_peak_in_child,
    timed,
)
from lowtide.engine.notices import warn
from lowtide.engine.planning import Settings
from lowtide.engine.prepare import prepare
from lowtide.engine.runtime import PlannedCall
from lowtide.engine.trace import look
from lowtide.engine.training import Loss, default_loss, training_step
from lowtide.engine.verify import Verification, compare
from lowtide.errors import (
    CaptureError,
    InvalidArgumentError,
    NoTrainingGraphError,
)
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes

Model = TypeVar("Model", bound=Callable[..., Any])


def optimize(
    model: Model,
    *,
    budget: str | int | None = None,
    planner: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    inner: str = "eager",
    time_limit: float = 10.0,
    verify: bool | int = False,
    cache: bool = True,
) -> Model:
    """The same model, in place, whose training steps stay within the budget.

    Plans at the first training call, before anything of it runs. Calls without
    gradients and calls in evaluation mode are not touched.

    Args:
        model: A module, or a function such as a loss closure over one; a function is
            returned wrapped, and everything it computes is planned.
        budget: Bytes that the whole step may need at once: `"6 GiB"`, `6442450944`,
            `"60%"` of what it needs unplanned. Default: `LOWTIDE_BUDGET`.
        planner: A name of `lowtide.planners.available()`. Default: `LOWTIDE_PLANNER`,
            else "auto".
        optimizer: If given, the bytes of its state count against the budget.
        inner: What runs the ops; only "eager".
        time_limit: Seconds the planner may search.
        verify: Before the first planned call, run it both ways and compare bitwise;
            with a number n, before every n-th.
        cache: Whether measured op times are kept on disk.
    """
    if os.environ.get("LOWTIDE_DISABLE") == "1":
        return model
    budget = budget if budget is not None else os.environ.get("LOWTIDE_BUDGET")
    if budget is None:
        raise InvalidArgumentError(
            "lowtide.optimize without a budget",
            "none was given and LOWTIDE_BUDGET is not set",
            'Write budget="6 GiB"',
        )
    to_bytes(budget, baseline_bytes=1 << 40)
    settings = Settings(
        budget=budget,
        planner=planner or os.environ.get("LOWTIDE_PLANNER") or "auto",
        optimizer=optimizer,
        time_limit=time_limit,
        cache=cache,
        verify_every=_verify_every(verify),
    )
    planners.load(settings.planner)
    return _install(model, settings, inner)


def apply(model: Any, plan: Plan, *, inner: str = "eager") -> Any:
    """The same model, in place, whose training steps run exactly this plan.

    Raises `PlanMismatchError` at the first training call whose graph is another.
    """
    if os.environ.get("LOWTIDE_DISABLE") == "1":
        return model
    return _install(model, plan, inner)


def _verify_every(verify: bool | int) -> int:
    """Before which calls to verify: 0 none, n every n-th."""
    if verify is True:
        return sys.maxsize  # the first, and no other
    if verify < 0:
        raise InvalidArgumentError(
            f"verify={verify}", "it is negative", "Write True, or a number of steps"
        )
    return int(verify)


def _install(model: Any, asked: Settings | Plan, inner: str) -> Any:
    if inner != "eager":
        raise InvalidArgumentError(
            f"inner={inner!r}", "only 'eager' is supported", "Leave it out"
        )
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise InvalidArgumentError(
                f"lowtide.optimize({type(model).__name__})",
                "it is neither a module nor a function",
                "Pass the model, or a function that computes the loss",
            )
        modules = modules_of(model)
        return PlannedCall(model, asked, modules, _checked(model, asked, modules))
    _refuse_bypassed(model)
    if not isinstance(model._compiled_call_impl, PlannedCall | None):
        warn(
            f"lowtide.optimize({type(model).__name__}): the model's own compiled call "
            "is replaced by the planned one, which runs the ops of PyTorch as they are."
        )
    function = model._call_impl
    call = PlannedCall(function, asked, [model], _checked(function, asked, [model]))
    call.watch_for_bypass(model)
    model._compiled_call_impl = call  # type: ignore[assignment]
    return model


def _checked(
    function: Callable[..., Any], asked: Settings | Plan, modules: list[nn.Module]
) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """Run a call both ways, and raise if they differ."""

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        result = _both_ways(function, asked, modules, args, kwargs, None, False)
        result.raise_if_failed()

    return check


def planned(model: Any) -> PlannedCall | None:
    """The planned call of an optimized model or function, with its plans and steps."""
    if isinstance(model, PlannedCall):
        return model
    call = getattr(model, "_compiled_call_impl", None)
    return call if isinstance(call, PlannedCall) else None


def restore(model: Any) -> Any:
    """The model as it was before `optimize` or `apply`."""
    if isinstance(model, PlannedCall):
        return model.function
    if planned(model) is not None:
        model._compiled_call_impl = None
    return model


def _refuse_bypassed(model: nn.Module) -> None:
    for base in type(model).__mro__:
        if base.__name__ == "LightningModule":
            raise NoTrainingGraphError(
                f"lowtide.optimize({type(model).__name__})",
                "Lightning calls its training_step and not the module itself, so a "
                "planned call would never run",
                "Optimize the network inside it, as in "
                "lowtide.optimize(lightning_module.net, budget=...)",
            )


def modules_of(function: Any) -> list[nn.Module]:
    """The model, or what a function closes over, is bound to or finds by name."""
    if isinstance(function, nn.Module):
        return [function]
    if isinstance(function, PlannedCall):
        return list(function.modules)
    inner = function
    found: list[Any] = []
    while hasattr(inner, "func"):  # functools.partial
        found += [*inner.args, *inner.keywords.values()]  # type: ignore[attr-defined]
        inner = inner.func  # type: ignore[attr-defined]
    found.append(getattr(inner, "__self__", None))
    inner = getattr(inner, "__func__", inner)
    for cell in getattr(inner, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    code = getattr(inner, "__code__", None)
    scope = getattr(inner, "__globals__", {})
    found += [scope.get(name) for name in (code.co_names if code else ())]
    return list({id(m): m for m in found if isinstance(m, nn.Module)}.values())


def profile(
    model: Any,
    batch: Any,
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    how: str = "measure",
    device: str | None = None,
    cache: bool = True,
    name: str | None = None,
    progress: Any = None,
) -> StepGraph:
    """The training step `loss(model(batch)).backward()` as a graph with costs.

    Nothing of the step runs for real: it is captured on fake tensors, then each
    distinct op is timed alone (`how="measure"`) or estimated from a device description
    (`how="estimate"`, where nothing is allocated at all). Without a loss, it is
    `output.loss`, the output if that is one number, or else the sum of what the model
    returns. Values are never looked at, so NaNs in the batch change nothing.
    """
    if how not in ("measure", "estimate"):
        raise InvalidArgumentError(
            f"how={how!r}", "it is neither", "Write how='measure' or how='estimate'"
        )
    if not callable(model):
        raise InvalidArgumentError(
            f"lowtide.profile({type(model).__name__})",
            "it is neither a module nor a function",
            "Pass the model, or a function that computes the loss",
        )
    args, kwargs = arguments_of(batch)
    modules = modules_of(model)
    function = restore_function(model)
    seen = look(
        function,
        args,
        kwargs,
        modules=modules,
        loss=loss or default_loss,
        name=name or type(model).__name__.lower(),
    )
    if seen.whole is None:
        raise CaptureError(
            f"one of its graphs runs {max(seen.visits)} times in a step, with a graph "
            "break in between",
            fix="Remove the graph break, or use lowtide.optimize, which plans such a "
            "model with one order for all runs of a graph",
        )
    step = prepare(
        seen.whole, modules, how=how, device=device, cache=cache, progress=progress
    )
    if optimizer is None:
        return step
    return with_optimizer(
        step,
        optimizer,
        model=model if isinstance(model, nn.Module) else None,
        how=how,  # type: ignore[arg-type]
        device=device,
        cache=cache,
        progress=progress,
    )


def verify(
    model: Any,
    batch: Any,
    *,
    plan: Plan | None = None,
    budget: str | int | None = None,
    loss: Loss | None = None,
    planner: str = "auto",
    measured: bool = True,
) -> Verification:
    """Whether the planned step computes bitwise what the plain one does.

    Runs `loss(model(batch)).backward()` unplanned and planned from the same state, and
    puts gradients, buffers and random numbers back afterwards. The plan is the given
    one, one for the given budget, or, with neither, the one the model already has.
    """
    asked = _what_to_verify(model, plan, budget, planner)
    modules = modules_of(model)
    args, kwargs = arguments_of(batch)
    with _unwatched(model):
        return _both_ways(
            restore_function(model), asked, modules, args, kwargs, loss, measured
        )


def _unwatched(model: Any) -> AbstractContextManager[None]:
    present = planned(model)
    return nullcontext() if present is None else present.unwatched()


def _both_ways(
    function: Callable[..., Any],
    asked: Settings | Plan,
    modules: list[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Loss | None,
    measured: bool,
) -> Verification:
    """Run a training step plain and planned, and compare."""
    call = PlannedCall(function, asked, modules)
    call.is_watching = False
    # The caller's own tensors stay out of it: their graph and gradients are theirs.
    args, kwargs = pytree.tree_map(_on_its_own, (args, kwargs))

    def step(function: Callable[..., Any]) -> Callable[[], torch.Tensor]:
        return training_step(function, loss, args, kwargs)

    def measurement() -> Measurement:
        with preserved(modules):
            found = allocated_peak(step(call), modules, (args, kwargs))
            peak, resident, live = found[:3]
            ours, theirs = timed([step(call), step(function)], modules, 3)
        return Measurement(
            peak, 0, median(ours), tuple(ours), median(theirs), resident, live
        )

    def plan_of() -> Plan:
        if not call.watch.forwards:
            raise NoTrainingGraphError(
                "lowtide.verify",
                "the model is in evaluation mode, or gradients are turned off, so "
                "nothing of it ran planned",
                "Call model.train() first, outside of torch.no_grad()",
            )
        return asked if isinstance(asked, Plan) else call.plans[0]

    return compare(
        step(function), step(call), modules, plan_of, measurement if measured else None
    )


def _on_its_own(value: Any) -> Any:
    """A tensor that requires a gradient, cut off from where it came from."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return value


def _what_to_verify(
    model: Any, plan: Plan | None, budget: str | int | None, planner: str
) -> Settings | Plan:
    present = planned(model)
    if plan is not None and budget is not None:
        raise InvalidArgumentError(
            "lowtide.verify", "both plan and budget were given", "Give one of them"
        )
    if plan is not None:
        return plan
    if budget is not None:
        return Settings(budget=budget, planner=planner)
    if present is None:
        raise InvalidArgumentError(
            "lowtide.verify",
            "neither plan nor budget was given, and the model is not optimized",
            'Write plan=... or budget="6 GiB"',
        )
    return present.plans[-1] if present.plans else present.asked


def measure(
    model: Any, batch: Any, *, loss: Loss | None = None, steps: int = 5
) -> Measurement:
    """Real peak and time of the training step, planned or not.

    A planned model takes turns with its unplanned self. Gradients, buffers and random
    numbers are put back afterwards.
    """
    modules = modules_of(model)
    call = planned(model)
    plain = restore_function(model)
    args, kwargs = pytree.tree_map(_on_its_own, arguments_of(batch))

    def step(function: Callable[..., Any]) -> Callable[[], torch.Tensor]:
        return training_step(function, loss, args, kwargs)

    with _unwatched(model), preserved(modules):
        step(model)()
        peak, resident, live = allocated_peak(step(model), modules, batch)[:3]
        sides = [step(model)] if call is None else [step(model), step(plain)]
        samples = timed(sides, modules, steps)
    if call is not None and not call.watch.forwards:
        raise NoTrainingGraphError(
            "lowtide.measure",
            "the model is in evaluation mode, or gradients are turned off, so nothing "
            "of it ran planned",
            "Call model.train() first, outside of torch.no_grad()",
        )
    plan_ = None
    if call is not None:
        plan_ = call.asked if isinstance(call.asked, Plan) else call.plans[-1]
    rss = None
    if isinstance(model, nn.Module) and not _on_accelerator(model):
        rss = rss_peak_in_child(model, batch, loss, plan_)
        if rss is None:
            with preserved(modules):
                rss = rss_peak(step(model), modules)
    return Measurement(
        peak_bytes=peak,
        rss_peak_bytes=rss or 0,
        seconds=median(samples[0]),
        samples=tuple(samples[0]),
        baseline_seconds=median(samples[-1]),
        resident_bytes=resident,
        live_bytes=live,
    )


def restore_function(model: Any) -> Callable[..., Any]:
    """The unplanned call of a model or function, which stays planned."""
    call = planned(model)
    if call is not None:
        return call.function
    return model._call_impl if isinstance(model, nn.Module) else model


def _on_accelerator(model: nn.Module) -> bool:
    return any(p.device.type != "cpu" for p in model.parameters())


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as positional and keyword arguments of the model."""
    if isinstance(batch, dict):
        return (), dict(batch)
    if isinstance(batch, tuple):
        return batch, {}
    return (batch,), {}
