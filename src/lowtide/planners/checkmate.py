"""Checkmate: the exact frontier-stage program, and its linear rounding.

Problem: the least time under a budget, over all schedules that run each op first in the
baseline's order.

Idea:

1. Cut the schedule into stages, each ending with the first run of one op. A stage may
   run earlier ops again, each once and in order, before that.
2. Say by 0 or 1 what is carried from stage to stage; what must run again, and what can
   be freed after which op, follows.
3. Ask for the least seconds of what is run again, such that the bytes alive while each
   op runs stay under the budget: a mixed-integer linear program.
4. Start from the best plan that simpler rules find, and stop at the time limit with a
   plan, a bound and a gap.
5. If the program is too large, solve it without "0 or 1", round what is carried at
   several thresholds, make what is then missing, and keep the best that fits.

Reference: P. Jain, A. Jain, A. Nrusimha, A. Gholami, P. Abbeel, J. Gonzalez, K.
Keutzer, I. Stoica, Checkmate: breaking the memory wall with optimal tensor
rematerialization, MLSys 2020 (arXiv 1910.02653). Here an op with several outputs is one
unit, the unit of memory is the storage, scratch counts, ops that may run only once run
in their own stage, and the solver is HiGHS.

Complexity: about n^2 choices for n ops; exponential in the worst case. Proven optima
within seconds up to about 25 ops, sometimes 60. With the usual ten seconds, plans with
a gap up to about 120 ops (13,000 choices); beyond that the relaxation is solved and
rounded, up to about 170 ops (35,000 choices); beyond that the answer is the best plan
of the simpler rules (`feng`, `dtr`, `mu_two`) brought into this form. More time admits
larger steps. The plan's `proof.stopped_by` says which it was: "optimal", "time_limit",
"rounding", or "size_limit". A search that the time limit ends may answer differently on
another machine; the other three do not.

Loses on anything of real size: a training step has several hundred to several thousand
ops. And its bound holds for schedules of this form only: another order of the first
runs, or running an op twice in one stage, can be better.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from lowtide.errors import BudgetTooSmallError
from lowtide.planners import dtr, feng, mu_two
from lowtide.planners._checkmate.model import Model
from lowtide.planners._checkmate.stages import Stages, carried_by, sequence_carrying
from lowtide.planners._linear import Answer, load_highs, solve
from lowtide.planners._tried import Tried, best_plan, fastest_within, lowest
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Proof
from lowtide.step.schedule import make_plan, with_frees

# Choices (columns for what is carried and what runs again) that each form can take, for
# each second of the time limit: which form is used must not depend on the machine.
_EXACT_CHOICES = 1_300
_RELAXED_CHOICES = 3_500
# Ops for each second up to which the slowest of the simpler rules is asked too.
_SLOW_RULE_OPS = 150

_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The fastest plan found under the budget, or the lowest peak found."""
    load_highs()
    search = _Search(step, budget_bytes, time_limit)
    limit_bytes = budget_bytes
    if limit_bytes is None or fastest_within(search.members, limit_bytes) is None:
        reached = search.lowest(budget_bytes)
        if limit_bytes is None:
            limit_bytes = reached.peak_bytes
        elif reached.peak_bytes > limit_bytes:
            # Not even that fits: this raises the error that says so.
            return best_plan(
                step, [reached], planner="checkmate", budget_bytes=budget_bytes
            )
    best, proof = search.fastest(limit_bytes)
    return make_plan(
        step,
        with_frees(step, best.sequence),
        planner="checkmate",
        budget_bytes=budget_bytes,
        proof=proof,
    )


class _Search:
    """Members found so far, and the ways to find more within the time limit."""

    def __init__(
        self, step: StepGraph, budget_bytes: int | None, time_limit: float
    ) -> None:
        self.step = step
        self.began = time.monotonic()
        self.time_limit = time_limit
        self.stages = Stages(step)
        choices = self.stages.num_choices()
        self.is_exact = choices <= _EXACT_CHOICES * time_limit
        self.is_relaxed = not self.is_exact and choices <= _RELAXED_CHOICES * time_limit
        self.unit_bytes = max(1.0, step.baseline_peak_bytes / 1000)
        self.members = [Tried.of(step, step.baseline)]
        self._seed(budget_bytes)

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return self.began + self.time_limit - time.monotonic()

    def _seed(self, budget_bytes: int | None) -> None:
        """The simpler planners' answers, brought into this form."""
        rules = [feng.plan, dtr.plan]
        if len(self.step.baseline) <= _SLOW_RULE_OPS * self.time_limit:
            rules.append(mu_two.plan)
        for rule in rules:
            self._add(carried_by(self.stages, rule(self.step, None).ops))
        floor = min(m.peak_bytes for m in self.members)
        if budget_bytes is None or budget_bytes < floor:
            return
        for rule in rules:
            with suppress(BudgetTooSmallError):
                self._add(carried_by(self.stages, rule(self.step, budget_bytes).ops))
        if not self.is_exact:
            # A rule may by chance go lower under a budget than it can without one, but
            # no answer may lie below what is said to be the floor.
            self.members = [m for m in self.members if m.peak_bytes >= floor]

    def _add(self, carried: Sequence[set[int]], runs: Sequence[set[int]] = ()) -> Tried:
        """Take in what carries this into the stages."""
        sequence = sequence_carrying(self.stages, carried, runs)
        self.members.append(Tried.of(self.step, sequence))
        return self.members[-1]

    def lowest(self, target_bytes: int | None) -> Tried:
        """The member with the lowest peak, after a search for lower ones.

        The search ends early at `target_bytes`.
        """
        if self.is_exact and self.left > 0:
            model = Model(self.stages, self.unit_bytes, None)
            answer = solve(
                model.program,
                # Half for the peak, the rest for the time at that peak.
                time_limit=self.left / 2,
                start=model.start(lowest(self.members).sequence),
                target=None if target_bytes is None else target_bytes / self.unit_bytes,
            )
            self._take(model, answer)
        elif self.is_relaxed:
            self._round(None)
        return lowest(self.members)

    def fastest(self, limit_bytes: int) -> tuple[Tried, Proof]:
        """The fastest under a limit that some member keeps, after a search."""
        bound, stopped_by = self.step.baseline_seconds, "size_limit"
        best = fastest_within(self.members, limit_bytes)
        assert best is not None
        if best.seconds <= bound:
            stopped_by = "optimal"
        elif self.is_exact:
            bound, stopped_by = self._exact(limit_bytes, best)
        elif self.is_relaxed:
            # The paper solves for a tenth less, so that rounding up still fits.
            bound, stopped_by = self._round(limit_bytes), "rounding"
            self._round(int(0.9 * limit_bytes))
        best = fastest_within(self.members, limit_bytes)
        assert best is not None
        if stopped_by == "optimal":
            bound = best.seconds
        bound = min(max(bound, self.step.baseline_seconds), best.seconds)
        gap = 1.0 - bound / best.seconds if best.seconds > 0 else 0.0
        seconds = time.monotonic() - self.began
        return best, Proof(bound, gap, stopped_by, search_seconds=seconds)

    def _exact(self, limit_bytes: int, known: Tried) -> tuple[float, str]:
        asked = limit_bytes
        while True:
            model = Model(self.stages, self.unit_bytes, asked)
            start = model.start(known.sequence)
            answer = solve(model.program, time_limit=self.left, start=start)
            taken = self._take(model, answer)
            over = 0 if taken is None else taken.peak_bytes - limit_bytes
            # The solver's tolerance can let a few bytes too many pass: ask for less.
            if over <= 0 or self.left <= 0 or asked < limit_bytes - 64 * over:
                break
            asked -= over
        bound = self.step.baseline_seconds + answer.bound * model.unit_seconds
        proven = answer.is_optimal and asked == limit_bytes
        return bound, "optimal" if proven else "time_limit"

    def _take(self, model: Model, answer: Answer) -> Tried | None:
        if not answer.values:
            return None
        return self._add(
            _chosen(model.carry, answer, 0.5), _chosen(model.rerun, answer, 0.5)
        )

    def _round(self, limit_bytes: int | None) -> float:
        """Solve without "0 or 1", round, and return a bound on the seconds."""
        model = Model(self.stages, self.unit_bytes, limit_bytes)
        answer = solve(model.program, time_limit=self.time_limit, relaxed=True)
        for threshold in _THRESHOLDS if answer.values else ():
            self._add(_chosen(model.carry, answer, threshold))
        extra = answer.bound * model.unit_seconds if answer.is_optimal else 0.0
        return self.step.baseline_seconds + extra


def _chosen(
    columns: Sequence[dict[int, int]], answer: Answer, threshold: float
) -> list[set[int]]:
    """For each stage, what has a column above the threshold."""
    values = answer.values
    return [{i for i, c in stage.items() if values[c] > threshold} for stage in columns]
