"""The public verbs, wired together from the stages."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowtide import planners
from lowtide.engine.call.methods import (
    METHOD,
    PlannedMethod,
    is_trained_by_method,
    method_of,
)
from lowtide.engine.call.runtime import PlannedCall
from lowtide.engine.checks.meter import (
    Measurement,
    measure_steps,
    preserved,
    rss_peak,
    rss_peak_in_child,
)
from lowtide.engine.checks.origin import origin_of
from lowtide.engine.checks.verify import Verification, compare, numbers_of
from lowtide.engine.costs.optimizer import with_optimizer
from lowtide.engine.graphs.compile import Inner
from lowtide.engine.notices import warn
from lowtide.engine.planning.prepare import prepare
from lowtide.engine.planning.settings import Settings
from lowtide.engine.planning.trace import look
from lowtide.engine.ranks.agreement import (
    inside_wrapper,
    is_divided_twice,
    refuse_flat_parameters,
)
from lowtide.engine.ranks.company import show_life
from lowtide.engine.seam import should_verify
from lowtide.engine.training import (
    Inputs,
    Loss,
    arguments_of,
    default_loss,
    training_step,
)
from lowtide.errors import CaptureError, InvalidArgumentError, NoTrainingGraphError
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
    inner: Inner = "eager",
    time_limit: float = 10.0,
    verify: bool | int = False,
    cache: bool = True,
    update: Literal["after", "in_backward"] = "after",
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
        inner: Whose kernels run the ops: PyTorch's own ("eager") or Inductor's, which
            fuses them ("inductor"). The numbers are then those of the compiled step.
        time_limit: Seconds the planner may search.
        verify: Before the first planned call, run it both ways and compare bitwise;
            with a number n, before every n-th.
        cache: Whether measured op times are kept on disk.
        update: With "in_backward", each parameter is updated by `optimizer` as soon as
            its gradient is complete, and the gradient is freed. Go on calling
            `optimizer.step()` after every backward; it finds nothing left to do.
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
    _check_choice("update", update, "after", "in_backward")
    if update == "in_backward" and verify:
        raise _cannot_repeat("optimize(verify=...)")
    if verify < 0:
        raise InvalidArgumentError(
            f"verify={verify}", "it is negative", "Write True, or a number of steps"
        )
    settings = Settings(
        budget=budget,
        planner=planner or os.environ.get("LOWTIDE_PLANNER") or "auto",
        optimizer=optimizer,
        time_limit=time_limit,
        cache=cache,
        updates_in_backward=update == "in_backward",
        # With a torch that was never tried, the first step is compared in any case;
        # updates run only once.
        verify_every=_FIRST_ONLY
        if verify is True or (not verify and update == "after" and should_verify())
        else int(verify),
    )
    planners.load(settings.planner)
    return _installed(model, settings, inner)


# Before every n-th call, with an n that is never reached again.
_FIRST_ONLY = sys.maxsize


def _check_choice(name: str, given: str, *choices: str) -> None:
    if given not in choices:
        known = " or ".join(map(repr, choices))
        raise InvalidArgumentError(
            f"{name}={given!r}", "it is neither", f"Write {known}"
        )


def _cannot_repeat(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f'lowtide.{what} with update="in_backward"',
        "a step updates the parameters, so it cannot be run a second time to compare",
        "Compare the parameters of two training runs instead",
    )


def apply(model: Any, plan: Plan, *, inner: Inner = "eager") -> Any:
    """The same model, in place, whose training steps run exactly this plan.

    Raises `PlanMismatchError` at the first training call whose graph is another.
    """
    if os.environ.get("LOWTIDE_DISABLE") == "1":
        return model
    return _installed(model, plan, inner)


def _installed(model: Any, asked: Settings | Plan, inner: Inner) -> Any:
    """The model, planned inside of what only exchanges its gradients."""
    refuse_flat_parameters(model)
    if is_divided_twice(model):
        warn(
            f"lowtide.optimize({type(model).__name__}): its layers are divided, and "
            "its parameters are divided once more by fully_shard. Such a step cannot "
            "be planned yet; it runs as it is, under no budget."
        )
        return model
    show_life()
    inside = inside_wrapper(model)
    made = _install(inside, asked, inner)
    return made if inside is model else model


def _install(model: Any, asked: Settings | Plan, inner: Inner) -> Any:
    _check_choice("inner", inner, "eager", "inductor")
    if inner == "inductor" and getattr(asked, "updates_in_backward", False):
        raise InvalidArgumentError(
            'inner="inductor" with update="in_backward"',
            "updates are not compiled yet",
            "Leave one of them out",
        )
    _check_callable(model, "optimize")
    modules = modules_of(model)
    is_module = isinstance(model, nn.Module)
    function = model._call_impl if is_module else model

    def check(inputs: Inputs) -> None:
        fresh = PlannedCall(function, asked, modules, inner=inner)
        _both_ways(fresh, inputs, measured=False).raise_if_failed()

    if is_module and is_trained_by_method(model):
        function = method_of(model)
        PlannedMethod(model, asked, check)
        return model
    call = PlannedCall(function, asked, modules, check, inner)
    if not is_module:
        return call
    if not isinstance(model._compiled_call_impl, PlannedCall | None):
        warn(
            f"lowtide.optimize({type(model).__name__}): the model's own compiled call "
            "is replaced by the planned one, which runs PyTorch's ops uncompiled."
        )
    call.watch_for_bypass(model)
    model._compiled_call_impl = call  # type: ignore[assignment]
    return model


def _check_callable(model: Any, verb: str) -> None:
    if not callable(model):
        raise InvalidArgumentError(
            f"lowtide.{verb}({type(model).__name__})",
            "it is neither a module nor a function",
            "Pass the model, or a function that computes the loss",
        )


def planned(model: Any) -> PlannedCall | None:
    """The planned call of an optimized model or function, with its plans and steps."""
    if isinstance(model, PlannedCall):
        return model
    model = inside_wrapper(model)
    for name in (METHOD, "_compiled_call_impl"):
        call = getattr(model, name, None)
        if isinstance(call, PlannedCall):
            return call
    return None


def restore(model: Any) -> Any:
    """The model as it was before `optimize` or `apply`."""
    if isinstance(model, PlannedCall):
        return model.function
    call, inside = planned(model), inside_wrapper(model)
    if call is not None:
        call.learning.end()
    if isinstance(call, PlannedMethod):
        del vars(inside)[METHOD]
    elif call is not None:
        inside._compiled_call_impl = None
    return model


def modules_of(function: Any) -> list[nn.Module]:
    """The model, or what a function closes over, is bound to or finds by name."""
    if isinstance(function, nn.Module):
        return [function]
    if isinstance(function, PlannedCall):
        return list(function.modules)
    reached: list[Any] = []
    while isinstance(function, partial):
        reached += [*function.args, *function.keywords.values()]
        function = function.func
    reached.append(getattr(function, "__self__", None))
    function = getattr(function, "__func__", function)
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # nothing is in it yet
            reached.append(cell.cell_contents)
    if inspect.isfunction(function):
        reached += map(function.__globals__.get, function.__code__.co_names)
    return list({id(m): m for m in reached if isinstance(m, nn.Module)}.values())


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
    mesh: str | Mapping[str, int] | None = None,
) -> StepGraph:
    """The training step `loss(model(batch)).backward()` as a graph with costs.

    Nothing of the step runs for real: it is captured on fake tensors, then each
    distinct op is timed alone (`how="measure"`) or estimated from a device description
    (`how="estimate"`, where nothing is allocated at all). Without a loss, it is
    `output.loss`, the output if that is one number, or else the sum of what the model
    returns. Values are never looked at, so NaNs in the batch change nothing.

    With a `mesh` such as `"dp=128,tp=8"` it is the step of one of so many ranks, none
    of which has to be there: `dp` of them divide parameters, gradients and Adam's
    state, `tp` the layers. The batch is that of one rank. Costs are estimated.
    """
    _check_choice("how", how, "measure", "estimate")
    _check_callable(model, "profile")
    name = name or type(model).__name__.lower()
    if mesh is not None:
        # Not before it is asked for: it needs torch.distributed.
        from lowtide.engine.planning.mesh import profile_on_mesh

        given: Any = {"loss": loss or default_loss, "name": name, "device": device}
        return profile_on_mesh(model, arguments_of(batch), mesh, **given)
    modules = modules_of(model)
    seen = look(
        restore_function(model),
        arguments_of(batch),
        modules=modules,
        loss=loss or default_loss,
        name=name,
    )
    visits = max(number for _, number in seen)
    if visits > 1:
        raise CaptureError(
            f"one of its graphs runs {visits} times in a step, with a graph break in "
            "between",
            fix="Remove the graph break, or use lowtide.optimize, which plans such a "
            "model with one order for all runs of a graph",
        )
    pricing: Any = {"how": how, "device": device, "cache": cache, "progress": progress}
    step = prepare(seen[0][0], modules, **pricing)
    if optimizer is None:
        return step
    owner = model if isinstance(model, nn.Module) else None
    return with_optimizer(step, optimizer, model=owner, **pricing)


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
    call = planned(model)
    if plan is not None and budget is not None:
        raise InvalidArgumentError(
            "lowtide.verify", "both plan and budget were given", "Give one of them"
        )
    if plan is None and budget is None and call is None:
        raise InvalidArgumentError(
            "lowtide.verify",
            "neither plan nor budget was given, and the model is not optimized",
            'Write plan=... or budget="6 GiB"',
        )
    if call is not None and call.watch.updates is not None:
        raise _cannot_repeat("verify")
    asked = plan or Settings(budget=budget, planner=planner)
    if call is not None and plan is None and budget is None:
        asked = call.plans[-1] if call.plans else call.asked
    inner = "eager" if call is None else call.inner
    fresh = PlannedCall(restore_function(model), asked, modules_of(model), inner=inner)
    with nullcontext() if call is None else call.unwatched():
        return _both_ways(fresh, arguments_of(batch), loss, measured=measured)


def _both_ways(
    call: PlannedCall, inputs: Inputs, loss: Loss | None = None, *, measured: bool
) -> Verification:
    """Run a training step plain and planned, and compare. The call is a fresh one."""
    modules = list(call.modules)
    call.is_watching = False
    # The caller's own tensors stay out of it: their graph and gradients are theirs.
    inputs = pytree.tree_map(_on_its_own, inputs)
    plain, planned = (training_step(f, loss, inputs) for f in (call.plain, call))
    expected, actual = numbers_of(plain, modules), numbers_of(planned, modules)
    _check_ran_planned(call, "verify")
    plan = call.asked if isinstance(call.asked, Plan) else call.plans[0]
    measurement = None
    if measured:
        with preserved(modules):
            measurement = measure_steps([planned, plain], modules, inputs, 3)
    found = compare(expected, actual, plan, measurement)
    if found.loss_equal and found.gradients_equal and found.buffers_equal:
        return found
    return replace(found, origin=origin_of(plain, planned, modules, call.watch))


def _check_ran_planned(call: PlannedCall, verb: str) -> None:
    if not call.watch.forwards:
        raise NoTrainingGraphError(
            f"lowtide.{verb}",
            "the model is in evaluation mode, or gradients are turned off, so nothing "
            "of it ran planned",
            "Call model.train() first, outside of torch.no_grad()",
        )


def _on_its_own(value: Any) -> Any:
    """A tensor that requires a gradient, cut off from where it came from."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return value


def measure(
    model: Any, batch: Any, *, loss: Loss | None = None, steps: int = 5
) -> Measurement:
    """Real peak and time of the training step, planned or not.

    A planned model takes turns with its unplanned self. Gradients, buffers and random
    numbers are put back afterwards.
    """
    modules = modules_of(model)
    call = planned(model)
    if call is not None and call.watch.updates is not None:
        raise _cannot_repeat("measure")
    inputs = pytree.tree_map(_on_its_own, arguments_of(batch))
    step = training_step(model, loss, inputs)
    sides = [step]
    if call is not None:
        sides.append(training_step(call.plain, loss, inputs))
    unwatched = nullcontext() if call is None else call.unwatched()
    with unwatched, preserved(modules):
        step()
        found = measure_steps(sides, modules, batch, steps)
    plan_ = None
    if call is not None:
        _check_ran_planned(call, "measure")
        plan_ = call.asked if isinstance(call.asked, Plan) else call.plans[-1]
    on_cpu = all(p.device.type == "cpu" for m in modules for p in m.parameters())
    if not isinstance(model, nn.Module) or not on_cpu:
        return found
    rss = rss_peak_in_child(model, batch, loss, plan_)
    if rss is None:
        with preserved(modules):
            rss = rss_peak(step, modules)
    return replace(found, rss_peak_bytes=rss)


def restore_function(model: Any) -> Callable[..., Any]:
    """The unplanned call of a model or function, which stays planned."""
    call = planned(model)
    if call is not None:
        return call.function
    return model._call_impl if isinstance(model, nn.Module) else model
