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

from lowtide.planners.auto._problem import Problem


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule takes less than `seconds`; infinite if none fits the budget."""

    seconds: float
    is_complete: bool
    alive: tuple[frozenset[int], ...] = ()


class _Rows:
    """A linear program under construction, row by row."""

    def __init__(self) -> None:
        self.starts: list[int] = [0]
        self.columns: list[int] = []
        self.values: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(
        self, columns: list[int], values: list[float], low: float, high: float
    ) -> None:
        self.columns.extend(columns)
        self.values.extend(values)
        self.starts.append(len(self.columns))
        self.low.append(low)
        self.high.append(high)


class Relaxation:
    """The linear program for one step, budget and list of moments."""

    def __init__(self, problem: Problem, budget: float, moments: list[int]) -> None:
        self.problem, self.moments = problem, moments
        self.room = budget - problem.resident_bytes
        self.count = len(problem.step.ops)
        self.width = len(problem.size)
        self.intervals = len(moments) + 1
        total = self.intervals * self.count + len(moments) * self.width
        self.lower = np.zeros(total)
        self.upper = np.ones(total)
        self.cost = np.zeros(total)
        self.cost[: self.intervals * self.count] = np.tile(
            problem.seconds_array, self.intervals
        )
        self.rows = _Rows()
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
                self.upper[self.ran(number, j)] = 0.0
            self.lower[self.ran(number, home)] = 1.0

    def ran(self, op: int, interval: int) -> int:
        """Column: the op runs in the interval."""
        return interval * self.count + op

    def alive(self, storage: int, moment: int) -> int:
        """Column: the storage is alive when the moment comes."""
        return self.intervals * self.count + moment * self.width + storage

    def _fix_residents(self) -> None:
        for s in self.problem.step.resident:
            for j in range(len(self.moments)):
                self.upper[self.alive(s, j)] = 0.0

    def _once(self) -> None:
        problem = self.problem
        for number in range(self.count):
            if not problem.once[number]:
                continue
            if problem.step.ops[number].standby:
                for j in range(self.intervals):
                    self.upper[self.ran(number, j)] = 0.0
                continue
            columns = [self.ran(number, j) for j in range(self.intervals)]
            self.rows.add(columns, [1.0] * len(columns), 1.0, np.inf)
            for j, moment in enumerate(self.moments):
                if not problem.once[moment]:
                    continue
                # Ops that run once keep their order, so they keep their side too.
                before = number < moment
                for i in range(self.intervals):
                    if (i > j) if before else (i <= j):
                        self.upper[self.ran(number, i)] = 0.0

    def _inputs(self, j: int) -> None:
        """What runs in interval j has its inputs from its start or from within."""
        problem = self.problem
        for number in range(self.count):
            for s in problem.reads[number]:
                columns = [self.ran(number, j)]
                values = [1.0]
                for maker in self.producers[s]:
                    if maker != number:
                        columns.append(self.ran(maker, j))
                        values.append(-1.0)
                if j > 0:
                    columns.append(self.alive(s, j - 1))
                    values.append(-1.0)
                self.rows.add(columns, values, -np.inf, 0.0)

    def _moment(self, j: int) -> None:
        """The memory at moment j, and where what is alive there comes from."""
        problem, moment = self.problem, self.moments[j]
        for s in range(self.width):
            if problem.step.storages[s].resident:
                continue
            columns, values = [self.alive(s, j)], [1.0]
            for maker in self.producers[s]:
                columns.append(self.ran(maker, j))
                values.append(-1.0)
            if j > 0:
                columns.append(self.alive(s, j - 1))
                values.append(-1.0)
            self.rows.add(columns, values, -np.inf, 0.0)
        for s in problem.reads[moment]:
            self.lower[self.alive(s, j)] = 1.0
        for i in range(j + 1):
            self.upper[self.ran(moment, i)] = 0.0
        self.lower[self.ran(moment, j + 1)] = 1.0
        columns = [self.alive(s, j) for s in range(self.width) if problem.size[s] > 0]
        values = [problem.size[s] for s in range(self.width) if problem.size[s] > 0]
        room = self.room - float(problem.write_bytes[moment])
        scale = 1.0 / max(1.0, self.room)
        self.rows.add(columns, [v * scale for v in values], -np.inf, room * scale)

    def _outputs(self) -> None:
        problem = self.problem
        for s in problem.step.outputs:
            if problem.step.storages[s].resident:
                continue
            makers = self.producers[s]
            last = len(self.moments) - 1
            columns = [self.ran(m, last + 1) for m in makers]
            values = [1.0] * len(columns)
            if last >= 0:
                columns.append(self.alive(s, last))
                values.append(1.0)
            self.rows.add(columns, values, 1.0, np.inf)
            for j in range(len(self.moments)):
                # Once made, it is there at every later moment.
                for m in makers:
                    self.rows.add(
                        [self.alive(s, j), self.ran(m, j)], [1.0, -1.0], 0.0, np.inf
                    )
                if j > 0:
                    self.rows.add(
                        [self.alive(s, j), self.alive(s, j - 1)],
                        [1.0, -1.0],
                        0.0,
                        np.inf,
                    )

    def solve(self, time_limit: float) -> Bound:
        """The least time, or what is known of it."""
        if np.any(self.lower > self.upper):
            return Bound(np.inf, True)
        import highspy

        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("time_limit", time_limit)
        model = highspy.HighsLp()
        scale = 1.0 / max(self.problem.step.baseline_seconds, 1e-30)
        rows = self.rows
        model.num_col_, model.num_row_ = len(self.cost), len(rows.low)
        model.col_cost_ = self.cost * scale
        model.col_lower_, model.col_upper_ = self.lower, self.upper
        model.row_lower_, model.row_upper_ = np.array(rows.low), np.array(rows.high)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(rows.starts)
        model.a_matrix_.index_ = np.array(rows.columns)
        model.a_matrix_.value_ = np.array(rows.values)
        highs.passModel(model)
        highs.run()
        iterations = highs.getInfo().simplex_iteration_count
        self.problem.units += 4.0 * len(rows.low) + 15.0 * max(0, iterations)
        status = highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Bound(np.inf, True)
        if status != highspy.HighsModelStatus.kOptimal:
            return Bound(0.0, False)
        values = highs.getSolution().col_value
        alive = tuple(
            frozenset(s for s in range(self.width) if values[self.alive(s, j)] > 0.5)
            for j in range(len(self.moments))
        )
        # The solver's tolerance is 1e-7 on scaled numbers.
        return Bound(highs.getObjectiveValue() / scale * (1 - 1e-5), True, alive)


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
    found = {i for i in problem.baseline if problem.once[i]}
    for s in problem.step.outputs:
        if len(producers[s]) == 1:
            found.add(producers[s][0])
    return frozenset(found | _ancestors_of_all(problem, found))


def ancestors(problem: Problem, number: int) -> set[int]:
    """Ops that have run before this op runs for the first time, in any schedule."""
    return _ancestors_of_all(problem, {number})


def _ancestors_of_all(problem: Problem, numbers: set[int]) -> set[int]:
    producers = problem.step.producers
    found: set[int] = set()
    stack = list(numbers)
    while stack:
        for s in problem.reads[stack.pop()]:
            makers = producers[s]
            if len(makers) == 1 and makers[0] not in found:
                found.add(makers[0])
                stack.append(makers[0])
    return found
