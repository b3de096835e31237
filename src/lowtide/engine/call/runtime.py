"""A model or function whose training calls run as planned.

`PlannedCall` stands where the call was. The first training call with a new kind of
input is captured, profiled and planned before any of it runs; later ones run straight
through. Calls without gradients, and a module in evaluation mode, run as they always
did.

How a call runs is found on a ladder, from the top: as one planned graph; as several,
planned together or each as it arrives, where a graph that cannot be planned runs as it
is; and unplanned, with one warning. What trains without lowtide trains with it. Only a
budget that cannot be kept is an error, and it is raised before anything has run.

The methods stand in the order of the walk: `call`, `call_planned`, `run_route`, and
for a new kind of input `plan_route` and `attempt`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

from lowtide.engine.bits import Unchanged
from lowtide.engine.call.learning import Learning
from lowtide.engine.capture.questions import warn_of_values
from lowtide.engine.capture.tensors import tensors_in
from lowtide.engine.failures import Refusal, explain_failure, reason_of
from lowtide.engine.graphs.compile import Inner, compiled
from lowtide.engine.graphs.updates import Updates
from lowtide.engine.graphs.watch import Watch
from lowtide.engine.notices import warn
from lowtide.engine.planning.decide import Planning
from lowtide.engine.planning.settings import MOST_PIECES, Route, Settings
from lowtide.engine.training import Inputs, is_lazy, kind_of, name_of, without_sizes
from lowtide.errors import (
    BudgetTooSmallError,
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
        inner: Whose kernels run the ops.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        asked: Settings | Plan,
        modules: Sequence[nn.Module] = (),
        check: Callable[[Inputs], None] | None = None,
        inner: Inner = "eager",
    ) -> None:
        self.function = function
        self.inner: Inner = inner
        self.asked = asked
        self.modules = tuple(modules)
        self.check = check
        self.routes: dict[Any, Route] = {}
        self.watch = Watch()
        self.planning = Planning(name_of(function), asked, self.modules, self.watch)
        self.learning = Learning(self.planning)
        if self.planning.settings.updates_in_backward:
            self.watch.updates = Updates(self.planning.settings.optimizer)
        self.num_calls = self.num_training_calls = 0
        self.is_watching, self.trains_in_evaluation = True, False

    @property
    def plain(self) -> Callable[..., Any]:
        """The same without a plan: what a planned call is compared with."""
        if self.inner == "eager":
            return self.function
        return torch.compile(self.function, dynamic=False)

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
        return self.call(Inputs(args, kwargs))  # pyright: ignore

    # Under a `torch.compile` of the user's the graph breaks here, and the budget holds.
    @torch._dynamo.disable
    def call(self, inputs: Inputs) -> Any:
        """Run the call, with the module's own backward hooks around it."""
        self.num_calls += 1
        owner = getattr(self.function, "__self__", None)
        if not isinstance(owner, nn.Module) or not _has_backward_hooks(owner):
            return self.call_planned(inputs)
        # Such hooks belong to autograd's graph, which a captured call is one node of:
        # plan the module's forward, and leave its hooks to the module.
        if self.function != owner.forward:
            self.function = owner.forward
            self.forget()
        owner.__dict__["forward"] = lambda *a, **k: self.call_planned(Inputs(a, k))
        try:
            return inputs.call(owner._call_impl)
        finally:
            del owner.__dict__["forward"]

    def call_planned(self, inputs: Inputs) -> Any:
        """Run the call, planned if it is a training call, and checked if it is due."""
        if not self.is_training_call():
            self.learning.end()
            return self.run_in_evaluation(inputs)
        if self.watch.updates is not None:
            self.watch.updates.check(self.modules)
        self.learn_from_last_step()
        self.num_training_calls += 1
        every = self.planning.settings.verify_every
        if every == 0 or (self.num_training_calls - 1) % every:
            return self.run_route(inputs)
        if self.check is not None:
            self.check(inputs)
        outputs = self.run_route(inputs)
        self.watch.unchanged = Unchanged(_named_tensors(self.modules, inputs))
        return outputs

    def run_route(self, inputs: Inputs) -> Any:
        """Run the call as calls of its kind run, which the first of them decides."""
        kind = kind_of(inputs)
        key = (self.state_of_modules(), without_sizes(kind))
        is_new = key not in self.routes
        if is_new and any(map(is_lazy, self.modules)):
            # Its first call decides its shapes, which a plan would need.
            with self.only_this_plan():
                return inputs.call(self.function)
        route = self.planning.route = self.routes.setdefault(key, Route())
        if kind != route.kind:
            route.kind, route.num_plans = kind, 0
        if not is_new and route.run is None:
            return inputs.call(self.function)
        with self.only_this_plan():
            if route.run is not None:
                self.learning.observe_step(inputs)
                try:
                    return self.attempt(route.run, inputs, is_whole=route.is_whole)
                except _NotCapturedError as error:
                    # Something else than the inputs has changed.
                    log.info("planning anew: %s", error)
                except Exception:
                    self.learning.end()  # half a step teaches nothing
                    raise
            with _PLANNING, self.planning.agreement.calling():
                try:
                    outputs = self.plan_route(route, inputs, is_new=is_new)
                except BudgetTooSmallError:
                    del self.routes[key]  # the next call is refused as this one is
                    raise
            self.learning.observe_outside()
            return outputs

    def plan_route(self, route: Route, inputs: Inputs, *, is_new: bool) -> Any:
        """Plan for this kind of input, then run the call: the ladder.

        One graph is the common case, and capturing it touches nothing, so it is tried
        first. If there is a graph break, or a size that only values tell, all graphs
        are looked at in a dry run, planned together, and only then run.
        """
        call = compiled(
            self.function,
            self.planning.decide_alone,
            self.watch,
            fullgraph=True,
            with_numbers=is_new,
            inner=self.inner,
        )
        try:
            outputs = self.attempt(call, inputs, is_whole=True)
        except _NotCapturedError as error:
            reason = str(error)
            self.planning.agreement.go_down(reason)
            if self.inner == "inductor":
                warn(
                    f"{self.planning.name}: Inductor cannot compile this step as one "
                    f"graph, so PyTorch's own ops are planned. Found: {reason}"
                )
                self.inner = "eager"
                return self.plan_route(route, inputs, is_new=is_new)
            if self.watch.updates is not None:
                self.watch.updates.refuse(f"the step is not one graph: {reason}")
        else:
            return self.arrived(route, call, outputs)
        if route.num_plans > route.most_plans:
            return self.run_unplanned(route, reason, inputs)
        route.most_plans, route.is_whole = MOST_PIECES, False
        try:
            decide = self.planning.decide_together(self.function, inputs)
        except CaptureError as error:
            if self.planning.given is not None:
                raise
            return self.run_unplanned(route, reason_of(error), inputs)
        except LowtideError:
            raise
        except Exception as error:
            log.exception("planning failed")
            return self.run_unplanned(route, reason_of(error), inputs)
        call = compiled(
            self.function, decide, self.watch, fullgraph=False, with_numbers=True
        )
        num_left = len(self.watch.left)
        try:
            outputs = self.attempt(call, inputs, is_whole=False)
        except _NotCapturedError as error:
            return self.run_unplanned(route, str(error), inputs)
        left = self.watch.left[num_left:]
        if left and self.planning.has_run:
            warn(
                f"{self.planning.name}: {len(left)} of its graphs cannot be planned "
                f"and run without a plan. Found: {left[0]}"
            )
        return self.arrived(route, call, outputs, reason)

    def attempt(
        self, call: Callable[..., Any], inputs: Inputs, *, is_whole: bool
    ) -> Any:
        """Run it, or say that it could not be captured while nothing has run yet.

        Of a whole graph nothing runs before all of it is captured, so whatever is
        raised until then is about capturing; an error of the user's own will come
        again. Between pieces the user's code has run.
        """
        self.planning.forwards_before = self.watch.forwards
        self.planning.began = time.perf_counter()
        handled = sys.exception()
        try:
            return inputs.call(call)
        except Refusal as refusal:
            raise refusal.error from None
        except Exception as error:
            cause = explain_failure(error, handled)
            can_fall_back = isinstance(cause, CaptureError | TorchDynamoException)
            must_hold = self.planning.given is not None or not can_fall_back
            if isinstance(cause, LowtideError) and must_hold:
                raise cause from None
            if not (can_fall_back or is_whole) or self.planning.has_run:
                raise
            raise _NotCapturedError(reason_of(error)) from error

    def arrived(
        self, route: Route, call: Callable[..., Any], outputs: Any, reason: str = ""
    ) -> Any:
        """Take this way from now on, if planned graphs ran on it."""
        if self.planning.has_run:
            route.run = call
            warn_of_values(self.planning.name, self.watch.answers)
            return outputs
        if not any(v.requires_grad for v in tensors_in(outputs)):
            cause = "nothing in the captured graph requires a gradient"
            cause = cause if self.watch.unplanned else ""
            raise NoTrainingGraphError(self.planning.name, cause)
        warn(
            f"{self.planning.name}: nothing of this step could be captured, so it runs "
            f"unplanned, under no budget. Found: {reason}"
        )
        return outputs

    def run_unplanned(self, route: Route, reason: str, inputs: Inputs) -> Any:
        """The last rung."""
        self.planning.agreement.go_down(reason)
        route.run = None
        warn(
            f"{self.planning.name}: this step cannot be planned. "
            f"It runs unplanned, under no budget. Found: {reason} Optimize a part of "
            "the model that can be captured, or the function that computes the loss."
        )
        return inputs.call(self.function)

    def is_training_call(self) -> bool:
        """Whether a backward may follow."""
        if not torch.is_grad_enabled():
            return False
        if not self.modules or self.trains_in_evaluation:
            return True
        learns = {m for m in self.modules for p in m.parameters() if p.requires_grad}
        return any(m.training for m in learns or self.modules)

    def run_in_evaluation(self, inputs: Inputs) -> Any:
        """Run it unplanned, and notice if a gradient is computed nevertheless."""
        outputs = inputs.call(self.function)
        if torch.is_grad_enabled() and self.is_watching:
            for value in tensors_in(outputs):
                if value.requires_grad:
                    value.register_hook(self.notice_gradient)
                    break
        return outputs

    def notice_gradient(self, _: torch.Tensor) -> None:
        """A model that is trained in evaluation mode is planned in it too."""
        if self.trains_in_evaluation or not self.is_watching:
            return
        self.trains_in_evaluation = True
        warn(
            f"{self.planning.name}: a gradient was computed in evaluation mode. This "
            "step ran unplanned; those after it are planned in evaluation mode too."
        )

    def learn_from_last_step(self) -> None:
        """Plan again if the last step was not what the plan took it for."""
        if not (news := self.learning.news()):
            return
        log.info("planning anew: %s", news)
        is_fixed = self.inner == "inductor" or self.planning.route.is_fixed
        if self.learning.reads_anew or is_fixed:
            self.learning.reads_anew = False
            self.forget()
        else:
            self.watch.generation += 1
            self.planning.start_anew()

    def forget(self) -> None:
        """Let go of all plans."""
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

    # Steps that go around this call.

    def watch_for_bypass(self, model: nn.Module) -> None:
        """Raise at the first gradient of a step that went around this call.

        A trainer that calls a method of the model, and not the model, would otherwise
        train unplanned without a word.
        """
        parameter = next((p for p in model.parameters() if p.requires_grad), None)
        if parameter is None or is_lazy(model):
            return

        def check(_: torch.Tensor) -> None:
            if not self.is_watching:
                return
            handle.remove()
            current = self.installed_in(model)
            if not isinstance(current, PlannedCall | None):
                warn(
                    f"{self.planning.name}: the model was compiled afterwards, which "
                    "replaces the planned call: it runs under no budget. Compile "
                    "first, or leave model.compile() out."
                )
            elif self.num_calls == 0 and current is self:
                found = f"a gradient was computed, but {self.never_called}"
                raise NoTrainingGraphError(self.planning.name, found, self.instead)

        handle = parameter.register_post_accumulate_grad_hook(check)

    never_called = (
        "the model itself was never called: something calls one of its methods or "
        "submodules instead"
    )
    instead = "Optimize what is called, or the function that computes the loss"

    def installed_in(self, model: nn.Module) -> Any:
        """What now stands where this call was put."""
        return model._compiled_call_impl

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Gradients that come in this block are lowtide's own doing, no bypass."""
        before, self.is_watching = self.is_watching, False
        self.learning.is_paused = True
        try:
            yield
        finally:
            self.is_watching, self.learning.is_paused = before, False


def _has_backward_hooks(module: nn.Module) -> bool:
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def _named_tensors(
    modules: Sequence[nn.Module], inputs: Inputs
) -> Iterator[tuple[str, torch.Tensor]]:
    """What a recomputation may start from: the inputs and the parameters."""
    for number, value in enumerate(pytree.tree_leaves(inputs)):
        if isinstance(value, torch.Tensor):
            yield f"input {number}", value
    for module in modules:
        yield from module.named_parameters()
