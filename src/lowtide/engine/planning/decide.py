"""How the graphs of a call are to run: as a plan says, or as a budget allows."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from lowtide import planners
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.shapes import ResizedError
from lowtide.engine.capture.step import step_of
from lowtide.engine.costs.living import optimizer_of
from lowtide.engine.graphs.outside import Outside
from lowtide.engine.graphs.rewrite import Orders, orders_of
from lowtide.engine.graphs.watch import Watch
from lowtide.engine.notices import announce, warn
from lowtide.engine.planning.family import Family
from lowtide.engine.planning.plans import kept_on_disk
from lowtide.engine.planning.prepare import (
    Unpriced,
    gradient_bytes,
    prepare,
    with_beside,
    with_guessed_room,
    with_outside,
)
from lowtide.engine.planning.settings import Route, Settings
from lowtide.engine.planning.shares import plans_by_share, with_updates
from lowtide.engine.planning.trace import look
from lowtide.engine.ranks.agreement import Agreement
from lowtide.engine.training import Inputs
from lowtide.errors import BudgetTooSmallError, CaptureError, LowtideError
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan
from lowtide.step.units import to_bytes

T = TypeVar("T")

log = logging.getLogger("lowtide.run")


class Planning:
    """Decides for each graph that arrives, and remembers the plans it made.

    A plan that was `given` decides alone; otherwise the `settings` say how to plan.
    `name` is what messages call it, `route` that of the present call, and
    `forwards_before` how many forwards had run when the call began. What earlier steps
    have taught is in `outside` (what the code around a single graph needs),
    `beside_bytes` (what a step took beyond its plan), `in_flight` (how many forwards
    wait for their backwards together) and `foreseen` (the graphs of a step that could
    not be seen before it ran, and how often each). `bare` is the step without what is
    outside. The plans promise a peak of `promised_bytes` and may take `allowed_bytes`.
    """

    def __init__(
        self,
        name: str,
        asked: Settings | Plan,
        modules: Sequence[nn.Module],
        watch: Watch,
    ) -> None:
        self.name = name
        self.given = asked if isinstance(asked, Plan) else None
        self.settings = Settings(None) if isinstance(asked, Plan) else asked
        self.modules, self.watch = tuple(modules), watch
        self.outside: Outside | None = None
        self.beside_bytes = 0
        self.in_flight = 1
        self.foreseen: list[tuple[Unpriced, int]] = []
        self.agreement = Agreement(self.modules)
        self.counts_found_optimizer = True
        self.least_bytes = self.seen_bytes = 0
        self.began = time.perf_counter()
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all plans; what comes next is a new call."""
        self.plans: list[Plan] = []
        self.steps: list[StepGraph] = []
        self.bare: StepGraph | None = None
        self.families: dict[int, Family] = {}
        self.decide_foreseen: Callable[[Piece], Orders] | None = None
        self.largest_bytes = self.seen_bytes
        self.promised_bytes = self.allowed_bytes = 0
        self.route = Route()
        self.forwards_before = self.watch.forwards

    @property
    def family(self) -> Family:
        """The plans of steps that begin with as many bytes of gradients."""
        return self.families.setdefault(gradient_bytes(self.modules), Family())

    @property
    def has_run(self) -> bool:
        """Whether a planned graph has run in the present call."""
        return self.watch.forwards > self.forwards_before

    def decide_alone(self, piece: Piece) -> Orders:
        """The order of a piece that is the whole step."""
        if self.given is not None:
            return orders_of(self.given, piece)
        known = self.from_family(piece)
        if known is not None:
            return orders_of(known, piece)
        with self.agreement.deciding([step_of(piece)]):
            plan = self.within_budget(lambda: self.plan_alone(piece))
        self.family.add(step_of(piece), self.steps[-1], plan)
        return orders_of(plan, piece)

    def from_family(self, piece: Piece) -> Plan | None:
        """A plan made for other sizes that serves these, without a search."""
        bare = step_of(piece)
        is_alike = self.in_flight == 1 and not piece.beside_bytes
        found = self.family.resized(bare) if is_alike else None
        if found is None:
            return None
        step, member = found
        limit = self.limit_of(step)
        plan = self.family.fastest(step, bare, limit)
        while plan is not None and self.family.add_rung(
            plan, member, limit, lambda step, limit: self.search(step, limit, 1 / 4)
        ):
            plan = self.family.fastest(step, bare, limit)
        if plan is not None and not piece.is_resized:
            self.count_graph()
            self.remember(step, plan)
        return plan

    def limit_of(self, step: StepGraph) -> int:
        """The budget in bytes. A share is one of the largest sizes seen."""
        self.largest_bytes = max(self.largest_bytes, step.eager_peak_bytes)
        asked = to_bytes(self.settings.budget, baseline_bytes=self.largest_bytes)
        return max(asked, self.least_bytes)

    def plan_alone(self, piece: Piece) -> Plan:
        """The plan of a piece that is the whole step."""
        if self.in_flight > 1:
            return self.plan_shares([(piece, self.in_flight)])[0]
        step = self.bare = self.prepared(piece)
        if self.outside is not None:
            return self.plan(with_outside(step, self.outside))
        guessed = with_guessed_room(step, piece)
        return self.plan_around(step, guessed, self.limit_of(guessed))

    def plan_around(self, step: StepGraph, guessed: StepGraph, limit: int) -> Plan:
        """The plan of a step with room for code outside that has not been seen yet.

        How much room is a guess, and no reason to refuse a budget: what fits without
        it is run at the lowest peak, and planned again when that code has been seen.
        """
        try:
            return self.plan(guessed, limit_bytes=limit)
        except BudgetTooSmallError as error:
            found = self.search(guessed, error.floor_bytes)
            lowest = make_plan(step, found.schedule, planner=found.planner)
            if lowest.peak_bytes <= limit:
                return self.remember(step, lowest)
            if lowest.peak_bytes == found.peak_bytes:
                raise  # the guess has no part in it
            return self.plan(step, limit_bytes=limit)

    def within_budget(self, plan: Callable[[], T]) -> T:
        """What `plan` returns, if need be without what was only found along the way."""
        try:
            return plan()
        except BudgetTooSmallError as error:
            least = format_bytes(error.floor_bytes)
            if self.outside is not None and self.settings.is_share:
                # The share was of a guess, and the first step has been trained.
                warn(
                    f"{self.name}: with the code outside, the lowest peak found for "
                    f"this step is {least}, above {self.settings.budget} of what it "
                    "needs without lowtide. It is run at that peak."
                )
                self.least_bytes = error.floor_bytes
                try:
                    return plan()
                finally:
                    self.least_bytes = 0
            if self.beside_bytes:
                self.beside_bytes = 0
                warn(
                    f"{self.name}: code outside the planned graphs needs more than "
                    f"the budget leaves: the whole step takes at least {least}. The "
                    "planned graphs keep to the budget, the step as a whole does not. "
                    "Optimize the function that computes the loss, so that more of it "
                    "is planned."
                )
            elif self.plans:
                warn(
                    f"{self.name}: with larger inputs than before, or gradients to add "
                    f"to, it needs at least {least}, above the budget. That is used."
                )
                self.least_bytes = error.floor_bytes
            elif self.settings.optimizer is None and self.optimizer is not None:
                # Nobody named it.
                self.counts_found_optimizer = False
                warn(
                    f"{self.name}: the budget leaves no room for the optimizer: with "
                    f"its state and its update this step needs {least}. They are left "
                    "out of the budget. Pass optimizer= to have them counted always."
                )
            else:
                raise
            return self.within_budget(plan)

    def should_plan_again(self, outside: Outside) -> bool:
        """Whether what was seen outside calls for another plan; it is kept in mind.

        It does if the budget would not be kept, or could be kept in less time.
        """
        self.outside = outside
        if self.bare is None:
            return False
        plan, step = self.plans[-1], with_outside(self.bare, outside)
        self.seen_bytes = max(self.seen_bytes, step.eager_peak_bytes)
        limit = to_bytes(self.settings.budget, baseline_bytes=step.eager_peak_bytes)
        peak = make_plan(step, plan.schedule, planner=plan.planner).peak_bytes
        return peak > limit or (plan.overhead > 0.001 and peak < 0.98 * limit)

    def decide_together(
        self, function: Callable[..., Any], inputs: Inputs
    ) -> Callable[[Piece], Orders]:
        """How to run each of several pieces under one budget."""
        if self.given is not None:
            return self.decide_by(self.given)
        if self.foreseen:
            return self.decide_as_seen
        try:
            # Only in a copy: here, code of the user's would run twice.
            told = {"answers": self.watch.answers, "may_be_here": False}
            seen = look(function, inputs, modules=self.modules, **told)
        except Exception as error:
            if isinstance(error, LowtideError) and not isinstance(error, CaptureError):
                raise
            # No loss was found in the outputs, or values decide. Each graph is planned
            # when it arrives, beside what is held, and all after the first step.
            log.info("no dry run: %r", error)
            self.watch.visits = {}
            return self.decide_as_seen
        self.route.is_fixed = True
        return self.decide_by(*self.within_budget(lambda: self.plan_seen(seen)))

    def decide_as_seen(self, piece: Piece) -> Orders:
        """The order of a piece of a step that is known when it has run once."""
        if self.foreseen and self.decide_foreseen is None:
            self.decide_foreseen = self.decide_by(*self.plan_foreseen())
        return (self.decide_foreseen or self.decide_next)(piece)

    def plan_seen(self, seen: Sequence[tuple[Unpriced, int]]) -> list[Plan]:
        if len(seen) == 1 and seen[0][1] == 1:
            return [self.plan(self.prepared(seen[0][0]))]
        return self.plan_shares(seen)

    def plan_foreseen(self) -> list[Plan]:
        """Plans for the graphs of the first step, which has been trained by now."""
        with self.agreement.deciding([graph.step for graph, _ in self.foreseen]):
            try:
                return self.within_budget(lambda: self.plan_shares(self.foreseen))
            except BudgetTooSmallError as error:
                warn(f"{self.name}: {error} The step is run at that peak.")
                return self.plan_shares(self.foreseen, budget=error.floor_bytes)

    def plan_shares(
        self, graphs: Sequence[tuple[Piece | Unpriced, int]], budget: Any = None
    ) -> list[Plan]:
        """A plan for each of several graphs, which run this often in a step."""
        steps = [self.prepared(graph) for graph, _ in graphs]
        plans, peak_bytes, budget_bytes = plans_by_share(
            steps,
            [visits for _, visits in graphs],
            self.settings.budget if budget is None else budget,
            lambda step, limit: self.search(
                step, limit, (1 if limit is None else 1 / 8) / len(steps)
            ),
            is_same=self.in_flight > 1,
        )
        plans = [self.remember(*each) for each in zip(steps, plans, strict=True)]
        bares = [g.step if isinstance(g, Unpriced) else step_of(g) for g, _ in graphs]
        for each in zip(bares, steps, plans, strict=True):
            self.family.add(*each)
        self.promised_bytes, self.allowed_bytes = peak_bytes, budget_bytes
        return plans

    def decide_by(self, *plans: Plan) -> Callable[[Piece], Orders]:
        """How these plans run each piece as it arrives; equal ones arrive in order."""
        known = {p.fingerprint: plan for plan in plans for p in plan.pieces}
        arrived: Counter[str] = Counter()

        def decide(piece: Piece) -> Orders:
            fingerprint = step_of(piece).fingerprint
            arrived[fingerprint] += 1
            if fingerprint not in known and self.given is None:
                log.info("a graph of %d ops was not foreseen", len(piece.ops))
                return self.decide_next(piece)
            plan = known.get(fingerprint, plans[0])
            return orders_of(plan, piece, arrived[fingerprint] - 1)

        return decide

    def decide_next(self, piece: Piece) -> Orders:
        """The order of a piece of a larger step; one plan serves all sizes."""
        bare = step_of(piece)
        with self.agreement.deciding([bare]):
            plan = self.family.plan_for(bare)
            if plan is None:
                plan = self.within_budget(lambda: self.plan_next(piece))
                self.family.add(bare, self.steps[-1], plan)
        return orders_of(plan, piece)

    def plan_next(self, piece: Piece) -> Plan:
        """The plan of a piece in what the graphs before it leave of the budget.

        What comes after it is not known yet. If something has run already, a piece
        that does not fit gets its lowest plan instead of an error.
        """
        step = self.prepared(piece)
        guessed = with_guessed_room(step, piece)
        held = self.watch.held_bytes
        unplanned = guessed.eager_peak_bytes + held
        budget_bytes = to_bytes(self.settings.budget, baseline_bytes=unplanned)
        try:
            return self.plan_around(step, guessed, max(0, budget_bytes - held))
        except BudgetTooSmallError as error:
            floor = error.floor_bytes + held
            least = BudgetTooSmallError(budget_bytes, floor, error.blame)
            if not self.has_run:
                raise least from None
            warn(f"{self.name}: {least}")
            return self.plan(step, limit_bytes=error.floor_bytes)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that was named, or else the one that has the parameters."""
        if self.settings.optimizer is not None or not self.counts_found_optimizer:
            return self.settings.optimizer
        return optimizer_of(self.modules)

    def count_graph(self) -> None:
        """Give up on a call whose graph changes without end."""
        self.route.num_plans += 1
        if self.route.num_plans > self.route.most_plans:
            raise CaptureError(
                f"its graph has changed {self.route.most_plans} times although its "
                "inputs are of the same kind",
                fix="Pass what changes as a tensor",
            )

    def prepared(self, source: Piece | Unpriced) -> StepGraph:
        if isinstance(source, Piece) and source.is_resized:
            raise ResizedError
        self.watch.stop_observing()
        self.count_graph()
        bare = step_of(source) if isinstance(source, Piece) else source.step
        limit = to_bytes(self.settings.budget, baseline_bytes=bare.eager_peak_bytes)
        step = prepare(
            source,
            self.modules,
            optimizer=self.optimizer,
            cache=self.settings.cache,
            limit_bytes=limit - self.watch.held_bytes,
        )
        beside = source.beside_bytes if isinstance(source, Piece) else 0
        return with_beside(step, self.beside_bytes + beside)

    def plan(self, step: StepGraph, *, limit_bytes: int | None = None) -> Plan:
        """The plan for a step within the budget, or this limit; it is remembered."""
        if limit_bytes is None:
            limit_bytes = self.limit_of(step)
        return self.remember(step, self.search(step, limit_bytes))

    def remember(self, step: StepGraph, plan: Plan) -> Plan:
        """Tell of a plan that will run, and keep it."""
        announce(step, plan, time.perf_counter() - self.began)
        self.plans.append(plan)
        self.steps.append(step)
        self.promised_bytes = max(self.promised_bytes, plan.peak_bytes)
        self.allowed_bytes = max(self.allowed_bytes, plan.budget_bytes or 0)
        return plan

    def search(
        self, step: StepGraph, limit_bytes: int | None, share: float = 1.0
    ) -> Plan:
        """Ask the planner, for this share of the time it may take.

        Without a limit a low peak is looked for.
        """
        planner = planners.load(self.settings.planner)
        seconds = share * self.settings.time_limit

        def find(step: StepGraph, limit_bytes: int | None) -> Plan:
            if limit_bytes is None and planner.name == "auto":
                # Planners are imported when they are asked.
                from lowtide.planners.auto import low

                return low(step, time_limit=seconds)
            return planner.plan(step, limit_bytes, time_limit=seconds)

        def search() -> Plan:
            return with_updates(step, limit_bytes, find)

        def known_or_found() -> Plan:
            if not self.settings.cache:
                return search()
            asked = (self.settings.planner, seconds)
            return kept_on_disk(step, limit_bytes, asked, search)

        return self.agreement.search(step, limit_bytes, known_or_found)
