"""A model or function whose training calls run as planned.

`PlannedCall` stands where the call was. The first training call with a new kind of
input is captured, profiled and planned before any of it runs; later ones run straight
through. Calls without gradients, and a module in evaluation mode, run as they always
did.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from lowtide import planners
from lowtide._capture._call import call_of
from lowtide._capture._joint import Piece
from lowtide._capture._record import Recording, compose
from lowtide._capture._step import piece_op, step_of
from lowtide._compile import Halves, Watch
from lowtide._dryrun import compiled, dry_run, explain_failure
from lowtide._graph import StepGraph, Storage
from lowtide._plan import Plan
from lowtide._profile import costs
from lowtide._report import report
from lowtide._units import format_bytes, format_percent, to_bytes
from lowtide.errors import LowtideError, NoTrainingGraphError, PlanMismatchError

log = logging.getLogger("lowtide.run")


@dataclass(frozen=True)
class Settings:
    """What the user asked for. Exactly one of `budget` and `plan` is given."""

    budget: Any = None
    plan: Plan | None = None
    planner: str = "auto"
    optimizer: torch.optim.Optimizer | None = None
    time_limit: float = 10.0
    cache: bool = True
    verify: bool = False


class PlannedCall:
    """Calls a function under a budget, or by a given plan.

    Args:
        function: What is called.
        settings: The budget and how to plan for it.
        modules: The modules it runs; the first one's training mode decides whether a
            call is a training call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Settings,
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self.function = function
        self.settings = settings
        self.modules = tuple(modules)
        self.calls: dict[Any, Callable[..., Any]] = {}
        self.plans: list[Plan] = []
        self.steps: list[StepGraph] = []
        self.watch = Watch()
        self.num_calls = 0
        self.before_first: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = (
            None
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call, planned if it is a training call."""
        self.num_calls += 1
        if not self.is_training_call():
            return self.function(*args, **kwargs)
        key = _kind_of_input(args, kwargs, self.has_gradients())
        call = self.calls.get(key)
        if call is None:
            if self.before_first is not None:
                check, self.before_first = self.before_first, None
                check(args, kwargs)
            call, outputs = self.first_call(args, kwargs)
            self.calls[key] = call
            return outputs
        return self.run(call, args, kwargs)

    def is_training_call(self) -> bool:
        """Whether a backward may follow."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return not self.modules or self.modules[0].training

    def has_gradients(self) -> bool:
        """Whether gradients are there already, to be added to."""
        return any(p.grad is not None for m in self.modules for p in m.parameters())

    def first_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], Any]:
        """Plan for this kind of input, then run the call.

        One graph is the common case, and capturing it touches nothing, so it is tried
        first. If there is a graph break, or a size that only values tell, all graphs
        are collected in a dry run, planned together, and only then run.
        """
        call = compiled(self.function, self.decide_alone, self.watch, fullgraph=True)
        try:
            return call, self.run(call, args, kwargs)
        except (Unsupported, BackendCompilerFailed) as error:
            if isinstance(error, BackendCompilerFailed) and not isinstance(
                error.inner_exception, GuardOnDataDependentSymNode
            ):
                raise
            log.info("one graph is not enough: %s", str(error).splitlines()[0])
        decide = self.decide_together(args, kwargs)
        call = compiled(self.function, decide, self.watch, fullgraph=False)
        return call, self.run(call, args, kwargs)

    def watch_for_bypass(self, model: nn.Module) -> None:
        """Raise at the first gradient of a step that went around this call.

        A trainer that calls a method of the model, and not the model, would otherwise
        train unplanned without a word.
        """
        parameter = next((p for p in model.parameters() if p.requires_grad), None)
        if parameter is None:
            return

        def check(_: torch.Tensor) -> None:
            handle.remove()
            if self.num_calls == 0:
                raise NoTrainingGraphError(
                    f"lowtide.optimize({type(model).__name__})",
                    "a gradient was computed, but the model itself was never called: "
                    "something calls one of its methods or submodules instead",
                    "Optimize what is called, or the function that computes the loss",
                )

        handle = parameter.register_post_accumulate_grad_hook(check)

    def run(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        before = self.watch.forwards
        try:
            outputs = call(*args, **kwargs)
        except BackendCompilerFailed as error:
            found = explain_failure(error)
            if isinstance(found, LowtideError):
                raise found from None
            raise
        if self.watch.forwards == before:
            raise self.nothing_arrived()
        return outputs

    def nothing_arrived(self) -> NoTrainingGraphError:
        cause = ""
        if self.watch.unplanned:
            cause = "nothing in the captured graph requires a gradient"
        return NoTrainingGraphError(f"lowtide.optimize({_name(self.function)})", cause)

    # Deciding.

    def decide_alone(self, piece: Piece) -> Halves:
        """The order of a piece that is the whole step."""
        if self.settings.plan is not None:
            return halves_of(self.settings.plan, piece)
        step = surrounded(step_of(piece), self.modules, self.settings.optimizer)
        step = self.with_reserve(
            costed(step, [piece], cache=self.settings.cache), piece
        )
        return halves_of(self.plan(step), piece)

    def decide_together(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Piece], Halves]:
        """How to run each of several pieces under one budget."""
        if self.settings.plan is not None:
            given = self.settings.plan
            return lambda piece: halves_of(given, piece)
        try:
            recording = dry_run(
                self.function, args, kwargs, modules=self.modules, loss=default_loss
            )
            plan = self.plan(self.step_of_recording(recording))
        except LowtideError:
            raise
        except Exception as error:
            # Code that looks at values cannot run without them. Then each graph is
            # planned when it arrives, against what the ones before it hold.
            log.info("no dry run: %s", str(error).splitlines()[0])
            return self.decide_next
        return lambda piece: halves_of(plan, piece)

    def decide_next(self, piece: Piece) -> Halves:
        """The order of a piece that is not the whole step, as it arrives.

        It is planned in what the graphs before it leave while they wait for their
        backwards. What comes after it is not known yet.
        """
        step = surrounded(step_of(piece), self.modules, self.settings.optimizer)
        step = self.with_reserve(
            costed(step, [piece], cache=self.settings.cache), piece
        )
        plan = self.plan(step, spent_bytes=self.watch.held_bytes)
        return halves_of(plan, piece)

    def step_of_recording(self, recording: Recording) -> StepGraph:
        step = surrounded(compose(recording), self.modules, self.settings.optimizer)
        return costed(step, recording.pieces, cache=self.settings.cache)

    def with_reserve(self, step: StepGraph, piece: Piece) -> StepGraph:
        """Leave room at the turn for a loss that is computed outside.

        Until it has been seen, it is taken to need three times the bytes of the outputs
        it is computed from: what it saves and what it is computing.
        """
        large = [
            s
            for place, node in enumerate(piece.tangents)
            if place not in piece.absent_tangents
            for s in piece.storage_of[node]
            if piece.storages[s].nbytes > 64
        ]
        turn = step.ops[step.turn]
        reserve = 3 * sum(step.sizes[s] for s in large)
        turn = replace(turn, scratch_bytes=turn.scratch_bytes + reserve)
        ops = (*step.ops[: turn.id], turn, *step.ops[turn.id + 1 :])
        return replace(step, ops=ops)

    def plan(self, step: StepGraph, *, spent_bytes: int = 0) -> Plan:
        """The plan for a step, remembered for whoever asks."""
        budget_bytes = to_bytes(
            self.settings.budget, baseline_bytes=step.baseline_peak_bytes
        )
        started = time.perf_counter()
        plan = planners.load(self.settings.planner).plan(
            step, budget_bytes - spent_bytes, time_limit=self.settings.time_limit
        )
        log.info(
            "plan: %s fits %s (peak %s, %s time) in %.1f s",
            plan.planner,
            format_bytes(budget_bytes),
            format_bytes(plan.peak_bytes),
            format_percent(plan.overhead, signed=True),
            time.perf_counter() - started,
        )
        self.plans.append(plan)
        self.steps.append(step)
        _report_if_asked(step, plan)
        return plan


def _report_if_asked(step: StepGraph, plan: Plan) -> None:
    """Write a report where `LOWTIDE_REPORT` says, beside what is there already.

    Training goes on if it cannot be written.
    """
    asked = os.environ.get("LOWTIDE_REPORT")
    if not asked:
        return
    path = first = Path(asked)
    number = 1
    while path.exists():
        number += 1
        path = first.with_stem(f"{first.stem}-{number}")
    try:
        report(step, plan).save(path)
    except LowtideError as error:
        warnings.warn(f"LOWTIDE_REPORT={asked}: {error}", stacklevel=2)
    else:
        log.info("report written to %s", path)


def costed(
    step: StepGraph,
    pieces: Sequence[Piece],
    *,
    how: Any = "measure",
    device: str | None = None,
    cache: bool = True,
    progress: Any = None,
) -> StepGraph:
    """The step with the time and the scratch bytes of every op."""
    places: list[int] = []
    calls = []
    for op in step.ops:
        if op.piece >= 0 and op.opens < 0 and op.phase != "optimizer":
            places.append(op.id)
            calls.append(call_of(piece_op(pieces[op.piece], local_number(step, op.id))))
    found = costs(calls, how=how, device=device, cache=cache, progress=progress)
    ops = list(step.ops)
    for place, cost in zip(places, found, strict=True):
        ops[place] = replace(
            ops[place],
            seconds=cost.seconds,
            spread=cost.spread,
            scratch_bytes=cost.scratch_bytes,
        )
    facts = {**step.facts, "how": how, "costs_of": device or ""}
    return replace(step, ops=tuple(ops), facts=facts)


def local_number(step: StepGraph, number: int) -> int:
    """An op's number within its own piece (see `step_of`)."""
    for row in step.facts["pieces"]:
        _, forward, forward_end, backward, backward_end = row
        if forward <= number < forward_end:
            return number - forward
        if backward <= number < backward_end:
            return number - backward + (forward_end - forward) + 1
    raise AssertionError(f"op {number} belongs to no piece")


def halves_of(plan: Plan, piece: Piece) -> Halves:
    """What a plan says about one piece: the ops of its forward and its backward."""
    wanted = step_of(piece).fingerprint
    rows = [row for row in plan.pieces if row[0] == wanted]
    if not rows:
        known = ", ".join(row[0] for row in plan.pieces) or plan.fingerprint
        raise PlanMismatchError(
            known, wanted, f"the graph that arrived has {len(piece.ops)} ops"
        )
    _, forward, forward_end, backward, backward_end = rows[0]
    num_forward = forward_end - forward
    halves: tuple[list[int], list[int]] = ([], [])
    turned = False
    for number in plan.ops:
        if forward <= number < forward_end:
            halves[turned].append(number - forward)
        elif backward <= number < backward_end:
            turned = True
            halves[1].append(number - backward + num_forward + 1)
        elif number in plan.openers:
            turned = turned or number == backward - 1
    return halves


_AROUND = (
    "parameters and buffers elsewhere",
    "optimizer state",
    "gradients from before",
)


def surrounded(
    step: StepGraph,
    modules: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | None,
) -> StepGraph:
    """The step with what else stays in memory: other parameters, optimizer state."""
    here = sum(s.nbytes for s in step.storages if s.kind in ("parameter", "buffer"))
    elsewhere = max(0, _state_bytes(modules) - here)
    kept = _optimizer_bytes(optimizer) if optimizer is not None else 0
    gradients = sum(
        p.grad.untyped_storage().nbytes()
        for m in modules
        for p in m.parameters()
        if p.grad is not None
    )
    extra = zip(
        _AROUND,
        ("parameter", "optimizer_state", "gradient"),
        (elsewhere, kept, gradients),
        strict=True,
    )
    storages = list(step.storages)
    for name, kind, nbytes in extra:
        if nbytes:
            storages.append(
                Storage(len(storages), name, nbytes, kind=kind, resident=True)  # type: ignore[arg-type]
            )
    return replace(step, storages=tuple(storages))


def _state_bytes(modules: Sequence[nn.Module]) -> int:
    storages: dict[int, int] = {}
    for module in modules:
        for value in (*module.parameters(), *module.buffers()):
            storage = value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of optimizer state: what is there, or what its first step will make."""
    present = [
        v
        for state in optimizer.state.values()
        for v in state.values()
        if isinstance(v, torch.Tensor)
    ]
    if present:
        return sum(v.untyped_storage().nbytes() for v in present)
    total = 0
    for group in optimizer.param_groups:
        copies = 2 if "betas" in group else 1 if group.get("momentum") else 0
        copies += 1 if group.get("amsgrad") else 0
        total += copies * sum(p.untyped_storage().nbytes() for p in group["params"])
    return total


def default_loss(output: Any) -> torch.Tensor:
    """`output.loss`, the output if it is one number, or the sum of its floats."""
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, dict):
        found = output.get("loss")
    if isinstance(found, torch.Tensor):
        return found
    floats = [
        v
        for v in pytree.tree_leaves(output)
        if isinstance(v, torch.Tensor) and v.is_floating_point()
    ]
    if len(floats) == 1 and floats[0].numel() == 1:
        return floats[0].reshape(())
    with_gradients = [v for v in floats if v.requires_grad] or floats
    total = torch.zeros(())
    for value in with_gradients:
        total = total + value.sum()
    return total


def _kind_of_input(args: Any, kwargs: Any, has_gradients: bool) -> Any:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds: list[Any] = [has_gradients, structure]
    for value in leaves:
        if isinstance(value, torch.Tensor):
            kinds.append((value.shape, value.stride(), value.dtype, value.device))
            kinds.append(value.requires_grad)
    return tuple(kinds)


def _name(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return type(owner).__name__
    return getattr(function, "__qualname__", type(function).__name__)
