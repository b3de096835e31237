"""How the graphs of a call are to run: as a plan says, or as a budget allows."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lowtide import planners
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.step import step_of
from lowtide.engine.notices import announce, warn
from lowtide.engine.orders import Orders, orders_of
from lowtide.engine.prepare import Unpriced, prepare, with_room_at_turn
from lowtide.engine.shares import plans_by_share
from lowtide.engine.trace import look
from lowtide.engine.training import default_loss
from lowtide.engine.watch import Watch
from lowtide.errors import BudgetTooSmallError, CaptureError, PlanMismatchError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes

log = logging.getLogger("lowtide.run")

# How many graphs are planned for one kind of input before its changes are given up on.
MOST_PLANS = 8
MOST_PIECES = 64


@dataclass(frozen=True)
class Settings:
    """A budget, and how to plan for it. `verify_every`: 0 never, n every n-th call."""

    budget: Any
    planner: str = "auto"
    optimizer: torch.optim.Optimizer | None = None
    time_limit: float = 10.0
    cache: bool = True
    verify_every: int = 0


@dataclass(eq=False)
class Route:
    """How calls with one kind of input run: compiled, or as they are."""

    run: Callable[..., Any] | None = None
    is_whole: bool = True
    num_plans: int = 0
    most_plans: int = MOST_PLANS


class Planning:
    """Decides for each graph that arrives, and remembers the plans it made.

    `name` is what messages call it, `route` that of the present call, and
    `forwards_before` how many forwards had run when the call began.
    """

    def __init__(
        self,
        name: str,
        asked: Settings | Plan,
        modules: Sequence[nn.Module],
        watch: Watch,
    ) -> None:
        self.name, self.asked = name, asked
        self.modules, self.watch = tuple(modules), watch
        self.plans: list[Plan] = []
        self.steps: list[StepGraph] = []
        self.route = Route()
        self.forwards_before = 0

    def start_anew(self) -> None:
        """For a graph that arrives by itself, without a call around it."""
        self.route = Route()
        self.forwards_before = self.watch.forwards
        self.plans.clear()
        self.steps.clear()

    def decide_alone(self, piece: Piece) -> Orders:
        """The order of a piece that is the whole step."""
        if isinstance(self.asked, Plan):
            return orders_of(self.asked, piece)
        return orders_of(self.plan(self.step_of_piece(piece)), piece)

    def decide_together(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Callable[[Piece], Orders]:
        """How to run each of several pieces under one budget."""
        if isinstance(self.asked, Plan):
            return self.decide_by(self.asked)
        try:
            seen = look(function, args, kwargs, modules=self.modules, loss=default_loss)
        except CaptureError as error:
            # No loss was found in what the model returns, or its code looks at values.
            # Then each graph is planned when it arrives, against what is held by then.
            log.info("no dry run: %s", error)
            return self.decide_next
        if seen.whole is not None:
            return self.decide_by(self.plan(self.prepared(seen.whole)))
        steps = [self.prepared(piece) for piece in seen.pieces]
        plans = plans_by_share(
            steps,
            seen.visits,
            budget=self.asked.budget,
            planner=self.asked.planner,
            time_limit=self.asked.time_limit,
        )
        self.plans += plans
        self.steps += steps
        return self.decide_by(*plans)

    def decide_by(self, *plans: Plan) -> Callable[[Piece], Orders]:
        """How these plans run each piece as it arrives; equal ones arrive in order."""
        known = {p.fingerprint: plan for plan in plans for p in plan.pieces}
        arrived: Counter[str] = Counter()

        def decide(piece: Piece) -> Orders:
            fingerprint = step_of(piece).fingerprint
            arrived[fingerprint] += 1
            plan = known.get(fingerprint, plans[0])
            try:
                return orders_of(plan, piece, arrived[fingerprint] - 1)
            except PlanMismatchError as error:
                if isinstance(self.asked, Plan):
                    raise
                log.info("a graph that was not foreseen: %s", error)
                return self.decide_next(piece)

        return decide

    def decide_next(self, piece: Piece) -> Orders:
        """The order of a piece that is not the whole step, as it arrives.

        It is planned in what the graphs before it leave while they wait for their
        backwards. What comes after it is not known yet. If something has run already,
        a piece that does not fit gets its lowest plan instead of an error.
        """
        assert isinstance(self.asked, Settings)
        step = self.step_of_piece(piece)
        held = self.watch.held_bytes
        budget_bytes = to_bytes(
            self.asked.budget, baseline_bytes=step.eager_peak_bytes + held
        )
        try:
            plan = self.plan(step, limit_bytes=max(0, budget_bytes - held))
        except BudgetTooSmallError as error:
            least = BudgetTooSmallError(
                budget_bytes, error.floor_bytes + held, error.blame
            )
            if self.watch.forwards == self.forwards_before:
                raise least from None
            warn(f"{self.name}: {least}")
            plan = self.plan(step, limit_bytes=error.floor_bytes)
        return orders_of(plan, piece)

    def step_of_piece(self, piece: Piece) -> StepGraph:
        """The step of one piece, with room at its turn for a loss outside.

        Until it has been seen, a loss is taken to need three times the bytes of the
        outputs it is computed from: what it saves and what it is computing.
        """
        large = [
            s
            for place, node in enumerate(piece.tangents)
            if place not in piece.absent_tangents
            for s in piece.storage_of[node]
            if piece.storages[s].nbytes > 64
        ]
        step = self.prepared(piece)
        return with_room_at_turn(step, 3 * sum(step.sizes[s] for s in large))

    def prepared(self, source: Piece | Unpriced) -> StepGraph:
        assert isinstance(self.asked, Settings)
        self.route.num_plans += 1
        if self.route.num_plans > self.route.most_plans:
            raise CaptureError(
                f"its graph has changed {self.route.most_plans} times although its "
                "inputs are of the same kind",
                fix="Pass what changes as a tensor",
            )
        return prepare(
            source,
            self.modules,
            optimizer=self.asked.optimizer,
            cache=self.asked.cache,
        )

    def plan(self, step: StepGraph, *, limit_bytes: int | None = None) -> Plan:
        """The plan for a step within the budget, or this limit; it is remembered."""
        assert isinstance(self.asked, Settings)
        if limit_bytes is None:
            limit_bytes = to_bytes(
                self.asked.budget, baseline_bytes=step.eager_peak_bytes
            )
        started = time.perf_counter()
        plan = planners.load(self.asked.planner).plan(
            step, limit_bytes, time_limit=self.asked.time_limit
        )
        announce(step, plan, time.perf_counter() - started)
        self.plans.append(plan)
        self.steps.append(step)
        return plan


def name_of(function: Any) -> str:
    """What messages call the planned form of a function or model."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return f"lowtide.optimize({type(owner).__name__})"
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"lowtide.optimize({name})"
