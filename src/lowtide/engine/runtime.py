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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from lowtide import planners
from lowtide.engine.capture.call import Call, calls_of
from lowtide.engine.capture.joint import Piece
from lowtide.engine.capture.record import Recording, compose
from lowtide.engine.capture.step import piece_op, step_of
from lowtide.engine.compile import Halves, Watch
from lowtide.engine.costs import costs, state_bytes, total_cost
from lowtide.engine.trace import compiled, dry_run, explain_failure
from lowtide.errors import (
    BudgetTooSmallError,
    CaptureError,
    LowtideError,
    LowtideWarning,
    NoTrainingGraphError,
    PlanMismatchError,
)
from lowtide.reporting import report
from lowtide.step.graph import StepGraph, Storage
from lowtide.step.plan import Plan
from lowtide.step.schedule import crossing, with_frees
from lowtide.step.simulate import simulate
from lowtide.step.units import format_bytes, format_percent, to_bytes

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
        modules: The modules it runs; whether one of them that can learn is in
            training mode decides whether a call is a training call.
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
        self.is_watching = True
        self.before_first: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = (
            None
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call, planned if it is a training call."""
        self.num_calls += 1
        if not self.is_training_call():
            return self.function(*args, **kwargs)
        self.learn_from_last_step()
        self.watch.held.clear()
        key = (self.state_of_modules(), _kind_of_input(args, kwargs))
        call = self.calls.get(key)
        if call is not None:
            try:
                return self.run(call, args, kwargs)
            except Unsupported as error:
                # Something else than the inputs has changed, and breaks the graph.
                # Nothing has run yet: one graph was compiled, or none.
                log.info("planning anew: %s", str(error).splitlines()[0])
        elif self.before_first is not None:
            self.before_first(args, kwargs)
            self.before_first = None
        self.calls[key], outputs = self.first_call(args, kwargs)
        return outputs

    def is_training_call(self) -> bool:
        """Whether a backward may follow."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        learning = [
            m for m in self.modules if any(p.requires_grad for p in m.parameters())
        ]
        return not self.modules or any(m.training for m in learning or self.modules)

    def learn_from_last_step(self) -> None:
        """Plan anew for the outputs that were differentiated, if a guess was wrong.

        With several graphs it is not known which one the surprise belongs to.
        """
        absent, self.watch.seen_absent = self.watch.seen_absent, None
        if absent is None or self.settings.plan is not None or self.watch.graphs != 1:
            return
        log.info("planning anew: other outputs are differentiated than was expected")
        self.watch.expected_absent = absent
        self.watch.graphs = 0
        self.calls.clear()

    def state_of_modules(self) -> Any:
        """What changes the captured graph besides the inputs."""
        modes = tuple(m.training for root in self.modules for m in root.modules())
        learns = tuple(p.requires_grad for m in self.modules for p in m.parameters())
        return hash((modes, learns, self.has_gradients()))

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
            if not self.is_watching:
                return
            handle.remove()
            if self.num_calls == 0 and model._compiled_call_impl is self:
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

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Gradients that come in this block are lowtide's own doing, no bypass."""
        before, self.is_watching = self.is_watching, False
        try:
            yield
        finally:
            self.is_watching = before

    # Deciding.

    def decide_alone(self, piece: Piece) -> Halves:
        """The order of a piece that is the whole step."""
        if self.settings.plan is not None:
            return halves_of(self.settings.plan, piece)
        return halves_of(self.plan(self.step_of_piece(piece)), piece)

    def decide_together(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Piece], Halves]:
        """How to run each of several pieces under one budget."""
        if self.settings.plan is not None:
            return self.decide_by(self.settings.plan)
        try:
            recording = dry_run(
                self.function, args, kwargs, modules=self.modules, loss=default_loss
            )
            if recording.most_visits > 1:
                return self.decide_shares(recording)
            plan = self.plan(self.step_of_recording(recording))
        except CaptureError as error:
            # No loss was found in what the model returns; the real one will come.
            log.info("no dry run: %s", error)
            return self.decide_next
        except LowtideError:
            raise
        except Exception as error:
            # Code that looks at values cannot run without them. Then each graph is
            # planned when it arrives, against what the ones before it hold.
            log.info("no dry run: %s", str(error).splitlines()[0])
            return self.decide_next
        return self.decide_by(plan)

    def decide_by(self, plan: Plan) -> Callable[[Piece], Halves]:
        """How the plan runs each piece as it arrives; equal ones arrive in order."""
        arrived: Counter[str] = Counter()

        def decide(piece: Piece) -> Halves:
            fingerprint = step_of(piece).fingerprint
            arrived[fingerprint] += 1
            try:
                return halves_of(plan, piece, arrived[fingerprint] - 1)
            except PlanMismatchError as error:
                if self.settings.plan is not None:
                    raise
                log.info("a graph that was not foreseen: %s", error)
                return self.decide_next(piece)

        return decide

    def decide_shares(self, recording: Recording) -> Callable[[Piece], Halves]:
        """Each piece alone, where one compiled piece runs several times in a step.

        All its runs share one order of ops, so every piece gets the same part of its
        own range, the largest at which all runs together stay within the budget.
        """
        pieces, visits = recording.pieces, recording.visits
        steps = [self.step_of_piece(p, is_last=p is pieces[-1]) for p in pieces]
        times = [visits[id(p)] for p in pieces]
        baseline = _together(steps, [step.baseline for step in steps], times)
        budget_bytes = to_bytes(self.settings.budget, baseline_bytes=baseline)
        load = planners.load(self.settings.planner)

        def plans_at(part: float) -> list[Plan]:
            return [
                load.plan(
                    step,
                    int(_between(step.floor_bytes, step.baseline_peak_bytes, part)),
                    time_limit=self.settings.time_limit / 8,
                )
                for step in steps
            ]

        def peak_of(plans: Sequence[Plan]) -> int:
            return _together(steps, [plan.ops for plan in plans], times)

        low, high = 0.0, 1.0
        best = plans_at(high)
        if peak_of(best) > budget_bytes:
            best = plans_at(low)
            if peak_of(best) > budget_bytes:
                raise BudgetTooSmallError(
                    budget_bytes,
                    peak_of(best),
                    f"graphs that run {max(times)} times in a step",
                )
            for _ in range(6):
                middle = _between(low, high, 0.5)
                plans = plans_at(middle)
                if peak_of(plans) <= budget_bytes:
                    low, best = middle, plans
                else:
                    high = middle
        self.plans += best
        self.steps += steps
        known = {plan.pieces[0][0]: plan for plan in best}

        def decide(piece: Piece) -> Halves:
            plan = known.get(step_of(piece).fingerprint)
            return self.decide_next(piece) if plan is None else halves_of(plan, piece)

        return decide

    def step_of_piece(self, piece: Piece, *, is_last: bool = True) -> StepGraph:
        """The step of one piece. Behind the last of them, a loss may need room."""
        step = surrounded(step_of(piece), self.modules, self.settings.optimizer)
        step = costed(step, [piece], cache=self.settings.cache)
        return self.with_reserve(step, piece) if is_last else step

    def decide_next(self, piece: Piece) -> Halves:
        """The order of a piece that is not the whole step, as it arrives.

        It is planned in what the graphs before it leave while they wait for their
        backwards. What comes after it is not known yet.
        """
        step = self.step_of_piece(piece)
        held = self.watch.held_bytes
        budget_bytes = to_bytes(
            self.settings.budget, baseline_bytes=step.baseline_peak_bytes + held
        )
        return halves_of(self.plan(step, limit_bytes=budget_bytes - held), piece)

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

    def plan(self, step: StepGraph, *, limit_bytes: int | None = None) -> Plan:
        """The plan for a step within the budget, or this limit; it is remembered."""
        budget_bytes = limit_bytes
        if budget_bytes is None:
            budget_bytes = to_bytes(
                self.settings.budget, baseline_bytes=step.baseline_peak_bytes
            )
        started = time.perf_counter()
        plan = planners.load(self.settings.planner).plan(
            step, budget_bytes, time_limit=self.settings.time_limit
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


def _between(low: float, high: float, part: float) -> float:
    return low + part * (high - low)


def _together(
    steps: Sequence[StepGraph], sequences: Sequence[Sequence[int]], times: Sequence[int]
) -> int:
    """Most bytes of a step in which every piece runs so many times.

    Each run holds from its forward to its backward what is alive at its turn; beside
    all that is held, one run at a time needs more.
    """
    resident = max(step.resident_bytes for step in steps)
    held = more = 0
    for step, sequence, number in zip(steps, sequences, times, strict=True):
        schedule = with_frees(step, sequence)
        peak = simulate(step, schedule).peak_bytes - step.resident_bytes
        at_turn = sum(step.sizes[s] for s in crossing(step, sequence))
        held += number * at_turn
        more = max(more, peak - at_turn)
    return resident + held + more


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
        text = f"LOWTIDE_REPORT={asked}: {error}"
        warnings.warn(text, LowtideWarning, stacklevel=2)
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
    calls: dict[int, list[Call]] = {}
    for op in step.ops:
        if op.piece >= 0 and op.opens < 0 and op.phase != "optimizer":
            own = piece_op(pieces[op.piece], local_number(step, op.id))
            calls[op.id] = calls_of(own)
    flat = [call for own in calls.values() for call in own]
    found = iter(costs(flat, how=how, device=device, cache=cache, progress=progress))
    ops = list(step.ops)
    for place, own in calls.items():
        cost = total_cost([next(found) for _ in own])
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


def halves_of(plan: Plan, piece: Piece, place: int = 0) -> Halves:
    """What a plan says about one piece: the ops of its forward and its backward.

    Of several pieces with the same fingerprint, `place` says which one it is.
    """
    wanted = step_of(piece).fingerprint
    rows = [row for row in plan.pieces if row[0] == wanted]
    if not rows:
        known = ", ".join(row[0] for row in plan.pieces) or plan.fingerprint
        raise PlanMismatchError(
            known, wanted, f"the graph that arrived has {len(piece.ops)} ops"
        )
    _, forward, forward_end, backward, backward_end = rows[place % len(rows)]
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
    kept = state_bytes(optimizer) if optimizer is not None else 0
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
    return _with_outside_loss(replace(step, storages=tuple(storages)))


def _with_outside_loss(step: StepGraph) -> StepGraph:
    """A loss that is computed outside, and its gradient, live to the end."""
    unit = step.alignment_bytes
    turn = step.ops[step.turn]
    if step.turn < 0 or all(step.sizes[s] <= unit for s in turn.writes):
        return step
    loss = Storage(len(step.storages), "loss and its gradient", 2 * unit)
    turn = replace(turn, writes=(*turn.writes, loss.id))
    return replace(
        step,
        storages=(*step.storages, replace(loss, kind="temporary")),
        ops=(*step.ops[: turn.id], turn, *step.ops[turn.id + 1 :]),
        outputs=(*step.outputs, loss.id),
    )


def _state_bytes(modules: Sequence[nn.Module]) -> int:
    storages: dict[int, int] = {}
    for module in modules:
        for value in (*module.parameters(), *module.buffers()):
            storage = value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


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


def training_step(
    function: Callable[..., Any],
    loss: Callable[[Any], torch.Tensor] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Callable[[], torch.Tensor]:
    """`loss(function(...)).backward()`, returning the loss.

    The outputs are held to the end, as in most training loops and in every prediction.
    """

    def run() -> torch.Tensor:
        outputs = function(*args, **kwargs)
        result = (loss or default_loss)(outputs)
        result.backward()
        return result.detach()

    return run


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


def _name(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return type(owner).__name__
    return getattr(function, "__qualname__", type(function).__name__)
