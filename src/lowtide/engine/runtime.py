"""A model or function whose training calls run as planned.

`PlannedCall` stands where the call was. The first training call with a new kind of
input is captured, profiled and planned before any of it runs; later ones run straight
through. Calls without gradients, and a module in evaluation mode, run as they always
did.

How a call runs is found on a ladder, from the top: as one planned graph; as several,
planned together or each as it arrives, where a graph that cannot be planned runs as it
is; and unplanned, with one warning. What trains without lowtide trains with it. Only a
budget that cannot be kept is an error, and it is raised before anything has run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

from lowtide.engine.bits import Unchanged
from lowtide.engine.compile import Refusal, compiled, explain_failure, reason_of
from lowtide.engine.notices import warn
from lowtide.engine.planning import MOST_PIECES, Planning, Route, Settings, name_of
from lowtide.engine.watch import Watch
from lowtide.errors import (
    CaptureError,
    LowtideError,
    NoTrainingGraphError,
)
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

log = logging.getLogger("lowtide.run")

# Dynamo and its settings belong to the process.
_PLANNING = threading.RLock()


class _NotCapturedError(Exception):
    """This rung of the ladder does not hold; nothing has run."""


class PlannedCall:
    """Calls a function under a budget, or by a given plan.

    Args:
        function: What is called.
        asked: The budget and how to plan for it, or the plan to run.
        modules: The modules it runs; whether one of them that can learn is in
            training mode decides whether a call is a training call.
        check: Compares a call with the same one without lowtide, and raises if they
            differ; asked before calls as `Settings.verify_every` says.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        asked: Settings | Plan,
        modules: Sequence[nn.Module] = (),
        check: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        self.function = function
        self.asked = asked
        self.modules = tuple(modules)
        self.check = check
        self.routes: dict[Any, Route] = {}
        self.watch = Watch()
        self.planning = Planning(name_of(function), asked, self.modules, self.watch)
        self.num_calls = 0
        self.num_training_calls = 0
        self.is_watching = True
        self.trains_in_evaluation = False

    @property
    def plans(self) -> list[Plan]:
        """The plans made so far."""
        return self.planning.plans

    @property
    def steps(self) -> list[StepGraph]:
        """The steps that they are for."""
        return self.planning.steps

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call, planned if it is a training call."""
        return self.call(args, kwargs)  # pyright: ignore[reportCallIssue]

    # Under a `torch.compile` of the user's the graph breaks here, and the budget holds.
    @torch._dynamo.disable
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call, planned if it is a training call."""
        self.num_calls += 1
        owner = getattr(self.function, "__self__", None)
        if isinstance(owner, nn.Module) and _has_backward_hooks(owner):
            return self.call_inside_hooks(owner, args, kwargs)
        return self.call_planned(args, kwargs)

    def call_inside_hooks(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Plan the module's forward, and leave its hooks to the module.

        They belong to autograd's graph, which a captured call is one node of.
        """
        if self.function != owner.forward:
            self.function = owner.forward
            self.forget()
        owner.__dict__["forward"] = lambda *a, **k: self.call_planned(a, k)
        try:
            return owner._call_impl(*args, **kwargs)
        finally:
            del owner.__dict__["forward"]

    def call_planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_training_call():
            return self.run_in_evaluation(args, kwargs)
        self.learn_from_last_step()
        if not self.is_check_due():
            return self.run_route(args, kwargs)
        if self.check is not None:
            self.check(args, kwargs)
        outputs = self.run_route(args, kwargs)
        self.watch.unchanged = Unchanged(_named_tensors(self.modules, args, kwargs))
        return outputs

    def run_route(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call as calls of its kind run."""
        key = (self.state_of_modules(), _kind_of_input(args, kwargs))
        route = self.planning.route = self.routes.get(key) or Route()
        is_known = key in self.routes
        self.routes[key] = route
        if is_known and route.run is None:
            return self.function(*args, **kwargs)
        with self.only_this_plan():
            if route.run is not None:
                try:
                    return self.run(route.run, args, kwargs, is_whole=route.is_whole)
                except _NotCapturedError as error:
                    # Something else than the inputs has changed.
                    log.info("planning anew: %s", error)
            with _PLANNING:
                return self.climb_down(route, args, kwargs, is_new=not is_known)

    def is_training_call(self) -> bool:
        """Whether a backward may follow."""
        if not torch.is_grad_enabled():
            return False
        learning = [
            m for m in self.modules if any(p.requires_grad for p in m.parameters())
        ]
        in_training = [m for m in learning or self.modules if m.training]
        return not self.modules or bool(in_training) or self.trains_in_evaluation

    def run_in_evaluation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run as it is, and notice if a gradient is taken all the same."""
        outputs = self.function(*args, **kwargs)
        if not torch.is_grad_enabled() or not self.is_watching:
            return outputs
        for value in pytree.tree_leaves(outputs):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(self.notice_gradient)
                break
        return outputs

    def notice_gradient(self, _: torch.Tensor) -> None:
        """A model that is trained in evaluation mode is planned in it too."""
        if self.trains_in_evaluation or not self.is_watching:
            return
        self.trains_in_evaluation = True
        warn(
            f"{self.planning.name}: a gradient was computed in "
            "evaluation mode. This step ran unplanned; those after it are planned in "
            "evaluation mode too."
        )

    def is_check_due(self) -> bool:
        """Whether this training call is to be compared with the plain one."""
        self.num_training_calls += 1
        every = self.asked.verify_every if isinstance(self.asked, Settings) else 0
        return every > 0 and (self.num_training_calls - 1) % every == 0

    def learn_from_last_step(self) -> None:
        """Plan anew for the outputs that were differentiated, if a guess was wrong.

        If others are differentiated in turns, all that ever were are planned for, so
        this comes to an end. With several graphs it is not known which one the surprise
        belongs to.
        """
        absent, self.watch.seen_absent = self.watch.seen_absent, None
        if absent is None or isinstance(self.asked, Plan) or self.watch.graphs != 1:
            return
        expected = self.watch.expected_absent
        wanted = absent if expected is None else absent & expected
        if wanted == expected:
            return
        log.info("planning anew: other outputs are differentiated than was expected")
        self.watch.expected_absent = wanted
        self.watch.graphs = 0
        self.forget()

    def forget(self) -> None:
        """Let go of all plans and what was compiled for them."""
        self.routes.clear()
        self.planning.start_anew()

    def state_of_modules(self) -> Any:
        """What changes the captured graph, or what it may use, besides the inputs."""
        modes = tuple(m.training for root in self.modules for m in root.modules())
        parameters = [p for m in self.modules for p in m.parameters()]
        learns = tuple(p.requires_grad for p in parameters)
        gradients = tuple(p.grad is not None for p in parameters)
        return hash((modes, learns, gradients))

    @contextmanager
    def only_this_plan(self) -> Iterator[None]:
        """Parts of the model that are optimized too run inside this plan, as plain."""
        inner = [
            (m, m._compiled_call_impl)
            for root in self.modules
            for m in root.modules()
            if isinstance(m._compiled_call_impl, PlannedCall)
        ]
        for module, call in inner:
            call.num_calls += 1
            module._compiled_call_impl = None
        try:
            yield
        finally:
            for module, call in inner:
                module._compiled_call_impl = call  # type: ignore[assignment]

    # The ladder.

    def climb_down(
        self,
        route: Route,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_new: bool,
    ) -> Any:
        """Plan for this kind of input, then run the call.

        One graph is the common case, and capturing it touches nothing, so it is tried
        first. If there is a graph break, or a size that only values tell, all graphs
        are looked at in a dry run, planned together, and only then run.
        """
        if any(_is_lazy(m) for m in self.modules):
            # Its shapes are decided by its first call, which a plan would need.
            del self.routes[next(k for k, r in self.routes.items() if r is route)]
            return self.function(*args, **kwargs)
        call = compiled(
            self.function,
            self.planning.decide_alone,
            self.watch,
            fullgraph=True,
            with_numbers=is_new,
        )
        try:
            outputs = self.run(call, args, kwargs, is_whole=True)
        except _NotCapturedError as error:
            log.info("one graph is not enough: %s", error)
            reason = str(error)
        else:
            return self.arrived(route, call, outputs)
        if route.num_plans > route.most_plans:
            return self.run_unplanned(route, reason, args, kwargs)
        try:
            decide = self.planning.decide_together(self.function, args, kwargs)
        except LowtideError:
            raise
        except Exception as error:
            log.exception("planning failed")
            return self.run_unplanned(route, reason_of(error), args, kwargs)
        route.most_plans, route.is_whole = MOST_PIECES, False
        call = compiled(self.function, decide, self.watch, fullgraph=False)
        num_left = len(self.watch.left)
        try:
            outputs = self.run(call, args, kwargs, is_whole=False)
        except _NotCapturedError as error:
            return self.run_unplanned(route, str(error), args, kwargs)
        left = self.watch.left[num_left:]
        if left and self.watch.forwards > self.planning.forwards_before:
            warn(
                f"{self.planning.name}: {len(left)} of its graphs "
                f"cannot be planned and run as they are. Found: {left[0]}"
            )
        return self.arrived(route, call, outputs, reason)

    def arrived(
        self, route: Route, call: Callable[..., Any], outputs: Any, reason: str = ""
    ) -> Any:
        """Take this way from now on, if planned graphs ran on it."""
        if self.watch.forwards > self.planning.forwards_before:
            route.run = call
            return outputs
        leaves = pytree.tree_leaves(outputs)
        asked = self.planning.name
        if not any(isinstance(v, torch.Tensor) and v.requires_grad for v in leaves):
            cause = ""
            if self.watch.unplanned:
                cause = "nothing in the captured graph requires a gradient"
            raise NoTrainingGraphError(asked, cause)
        warn(
            f"{asked}: nothing of this step could be captured, so it runs as it is, "
            f"under no budget. Found: {reason}"
        )
        return outputs

    def run(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_whole: bool,
    ) -> Any:
        """Run it, or say that it could not be captured while nothing has run yet.

        Of a whole graph nothing runs before all of it is captured, so whatever is
        raised until then is about capturing; an error of the user's own will come
        again. Between pieces the user's code has run.
        """
        before = self.planning.forwards_before = self.watch.forwards
        try:
            return call(*args, **kwargs)
        except Refusal as refusal:
            raise refusal.error from None
        except Exception as error:
            found = explain_failure(error)
            can_fall_back = isinstance(found, CaptureError | TorchDynamoException)
            if isinstance(found, LowtideError) and (
                isinstance(self.asked, Plan) or not can_fall_back
            ):
                raise found from None
            can_fall_back = can_fall_back or is_whole
            if not can_fall_back or self.watch.forwards > before:
                raise
            raise _NotCapturedError(reason_of(error)) from error

    def run_unplanned(
        self, route: Route, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The last rung."""
        route.run = None
        warn(
            f"{self.planning.name}: this step cannot be planned. "
            f"It runs as it is, under no budget. Found: {reason} Optimize a part of "
            "the model that can be captured, or the function that computes the loss."
        )
        return self.function(*args, **kwargs)

    def watch_for_bypass(self, model: nn.Module) -> None:
        """Raise at the first gradient of a step that went around this call.

        A trainer that calls a method of the model, and not the model, would otherwise
        train unplanned without a word.
        """
        parameter = next((p for p in model.parameters() if p.requires_grad), None)
        if parameter is None or _is_lazy(model):
            return
        name = f"lowtide.optimize({type(model).__name__})"

        def check(_: torch.Tensor) -> None:
            if not self.is_watching:
                return
            handle.remove()
            current = model._compiled_call_impl
            if current is not self and not isinstance(current, PlannedCall | None):
                warn(
                    f"{name}: the model was compiled afterwards, which replaces the "
                    "planned call: it runs under no budget. Compile first, or leave "
                    "model.compile() out."
                )
            elif self.num_calls == 0 and current is self:
                raise NoTrainingGraphError(
                    name,
                    "a gradient was computed, but the model itself was never called: "
                    "something calls one of its methods or submodules instead",
                    "Optimize what is called, or the function that computes the loss",
                )

        handle = parameter.register_post_accumulate_grad_hook(check)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Gradients that come in this block are lowtide's own doing, no bypass."""
        before, self.is_watching = self.is_watching, False
        try:
            yield
        finally:
            self.is_watching = before


def _kind_of_input(args: Any, kwargs: Any) -> Any:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds: list[Any] = [structure]
    for value in leaves:
        if isinstance(value, torch.Tensor):
            kinds.append((value.shape, value.stride(), value.dtype, value.device))
            kinds.append(value.requires_grad)
        elif isinstance(value, bool | None):
            kinds.append(value)
    return tuple(kinds)


def _has_backward_hooks(module: nn.Module) -> bool:
    found = (module._backward_hooks, module._backward_pre_hooks)
    return any(found) or bool(
        torch.nn.modules.module._global_backward_hooks
        or torch.nn.modules.module._global_backward_pre_hooks
    )


def _named_tensors(
    modules: Sequence[nn.Module], args: Any, kwargs: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """What a recomputation may start from: the inputs and the parameters."""
    for number, value in enumerate(pytree.tree_leaves((args, kwargs))):
        if isinstance(value, torch.Tensor):
            yield f"input {number}", value
    for module in modules:
        yield from module.named_parameters()


def _is_lazy(module: nn.Module) -> bool:
    """Whether some of its parameters do not have their shapes yet."""
    kinds = nn.UninitializedParameter | nn.UninitializedBuffer
    values = (*module.parameters(), *module.buffers())
    return any(isinstance(v, kinds) for v in values)
