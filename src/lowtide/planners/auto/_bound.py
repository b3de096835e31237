"""A lower bound on the time of any schedule within a budget, by linear programming.

Pick moments that every schedule passes in the same order: the first runs of ops that
must run, each an ancestor of the next (the turn is one of them). They cut the schedule
into intervals. For each interval and op there is a number in [0, 1], at least 1 if the
op runs there; for each moment and storage one that is 1 if the storage is alive. Then

* a storage alive at a moment was alive at the one before or was made in between,
* an op that runs in an interval finds each input alive at its start or made in it,
* at each moment what is alive fits the budget together with the op that runs,
* outputs are never freed, and exist at the end.

Every schedule within the budget gives such numbers, and their time is at most its own;
so the least time over all numbers in [0, 1] is a bound. It is Checkmate's relaxation
(Jain et al., MLSys 2020) with a few moments in place of one stage per op, and with no
order assumed inside an interval.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from lowtide.planners._linear import Program, solve
from lowtide.planners.auto._problem import Problem
from lowtide.step.remake import remaking


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule takes less than `seconds`; infinite if none fits the budget."""

    seconds: float
    is_complete: bool
    alive: tuple[frozenset[int], ...] = ()


class Relaxation:
    """The linear program for one step, budget and list of moments."""

    def __init__(self, problem: Problem, budget: float, moments: list[int]) -> None:
        self.problem, self.moments = problem, moments
        self.room = budget - problem.resident_bytes
        self.count = len(problem.step.ops)
        self.width = len(problem.size)
        self.intervals = len(moments) + 1
        self.scale = 1.0 / max(problem.step.baseline_seconds, 1e-30)
        self.program = Program()
        seconds: list[float] = (problem.seconds_array * self.scale).tolist()
        self.program.columns(seconds * self.intervals)
        self.program.columns([0.0] * (len(moments) * self.width))
        self.producers = problem.step.producers
        self._fix_residents()
        self._once()
        for j in range(self.intervals):
            self._inputs(j)
        for j in range(len(moments)):
            self._moment(j)
        self._outputs()

    def fix_order(self) -> None:
        """Let every op of the baseline run where the baseline runs it, and maybe again.

        What comes out is no bound any more, but nearer to a plan.
        """
        home = 0
        for number in self.problem.baseline:
            if home < len(self.moments) and number == self.moments[home]:
                home += 1
            for j in range(home):
                self.program.upper[self.ran(number, j)] = 0.0
            self.program.lower[self.ran(number, home)] = 1.0

    def ran(self, op: int, interval: int) -> int:
        """Column: the op runs in the interval."""
        return interval * self.count + op

    def alive(self, storage: int, moment: int) -> int:
        """Column: the storage is alive when the moment comes."""
        return self.intervals * self.count + moment * self.width + storage

    def _fix_residents(self) -> None:
        for s in self.problem.step.resident:
            for j in range(len(self.moments)):
                self.program.upper[self.alive(s, j)] = 0.0

    def _once(self) -> None:
        problem = self.problem
        for number in range(self.count):
            if not problem.once[number]:
                continue
            if problem.step.ops[number].standby:
                for j in range(self.intervals):
                    self.program.upper[self.ran(number, j)] = 0.0
                continue
            ran = {self.ran(number, j): 1.0 for j in range(self.intervals)}
            self.program.row(1.0, np.inf, ran)
            for j, moment in enumerate(self.moments):
                if not problem.once[moment]:
                    continue
                # Ops that run once keep their order, so they keep their side too.
                before = number < moment
                for i in range(self.intervals):
                    if (i > j) if before else (i <= j):
                        self.program.upper[self.ran(number, i)] = 0.0

    def _inputs(self, j: int) -> None:
        """What runs in interval j has its inputs from its start or from within."""
        problem = self.problem
        for number in range(self.count):
            for s in problem.reads[number]:
                terms = {self.ran(number, j): 1.0}
                for maker in self.producers[s]:
                    if maker != number:
                        terms[self.ran(maker, j)] = -1.0
                if j > 0:
                    terms[self.alive(s, j - 1)] = -1.0
                self.program.row(-np.inf, 0.0, terms)

    def _moment(self, j: int) -> None:
        """The memory at moment j, and where what is alive there comes from."""
        problem, moment = self.problem, self.moments[j]
        for s in range(self.width):
            if problem.step.storages[s].resident:
                continue
            terms = {self.alive(s, j): 1.0}
            for maker in self.producers[s]:
                terms[self.ran(maker, j)] = -1.0
            if j > 0:
                terms[self.alive(s, j - 1)] = -1.0
            self.program.row(-np.inf, 0.0, terms)
        for s in problem.reads[moment]:
            self.program.lower[self.alive(s, j)] = 1.0
        for i in range(j + 1):
            self.program.upper[self.ran(moment, i)] = 0.0
        self.program.lower[self.ran(moment, j + 1)] = 1.0
        room = self.room - float(problem.write_bytes[moment])
        scale = 1.0 / max(1.0, self.room)
        held = {
            self.alive(s, j): nbytes * scale
            for s, nbytes in enumerate(problem.size)
            if nbytes > 0
        }
        self.program.row(-np.inf, room * scale, held)

    def _outputs(self) -> None:
        problem = self.problem
        for s in problem.step.outputs:
            if problem.step.storages[s].resident:
                continue
            makers = self.producers[s]
            last = len(self.moments) - 1
            terms = {self.ran(m, last + 1): 1.0 for m in makers}
            if last >= 0:
                terms[self.alive(s, last)] = 1.0
            self.program.row(1.0, np.inf, terms)
            for j in range(len(self.moments)):
                # Once made, it is there at every later moment.
                earlier = [self.ran(m, j) for m in makers]
                if j > 0:
                    earlier.append(self.alive(s, j - 1))
                for column in earlier:
                    self.program.row(0.0, np.inf, {self.alive(s, j): 1.0, column: -1.0})

    def solve(self, time_limit: float) -> Bound:
        """The least time, or what is known of it."""
        if self.program.is_contradictory():
            return Bound(np.inf, True)
        answer = solve(self.program, time_limit=time_limit, relaxed=True)
        rows = len(self.program.row_lower)
        self.problem.units += 4.0 * rows + 15.0 * answer.iterations
        if answer.is_infeasible:
            return Bound(np.inf, True)
        if not answer.is_optimal:
            return Bound(0.0, False)
        alive = tuple(
            frozenset(
                s for s in range(self.width) if answer.values[self.alive(s, j)] > 0.5
            )
            for j in range(len(self.moments))
        )
        # The solver's tolerance is 1e-7 on scaled numbers.
        return Bound(answer.bound / self.scale * (1 - 1e-5), True, alive)


def bound_seconds(
    problem: Problem, budget: float, chains: list[list[int]], *, time_limit: float
) -> float:
    """The best of the bounds that these lists of moments give."""
    best = 0.0
    deadline = time.perf_counter() + time_limit
    for moments in chains:
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        best = max(best, Relaxation(problem, budget, moments).solve(left).seconds)
    return best


def must_run(problem: Problem) -> frozenset[int]:
    """Ops that every schedule runs: for their effect, or as only makers."""
    producers = problem.step.producers
    effects = {i for i in problem.baseline if problem.once[i]}
    for s in problem.step.outputs:
        if len(producers[s]) == 1:
            effects.add(producers[s][0])
    return frozenset(effects | _ancestors(problem, effects))


def ancestors(problem: Problem, number: int) -> set[int]:
    """Ops that have run before this op runs for the first time, in any schedule."""
    return _ancestors(problem, {number})


def _ancestors(problem: Problem, numbers: set[int]) -> set[int]:
    step = problem.step
    read = {s for number in numbers for s in step.ops[number].reads}
    return set(remaking(step, read, problem.residents, maker_of=problem.only_maker).ops)
