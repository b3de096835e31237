"""A lower bound on the time of any schedule within a budget, by linear programming.

Pick moments that every schedule passes in the same order: the first runs of ops that
must run, each an ancestor of the next (the turn is one of them). They cut the schedule
into intervals. For each interval and op there is a number in [0, 1], at least 1 if the
op runs there; for each moment and storage one that is 1 if the storage is alive. Then

* a storage alive at a moment was alive at the one before or was made in between,
* an op that runs in an interval finds each input alive at its start or made in it,
* at each moment what is alive fits the budget together with the op that runs,
* outputs are never freed, and exist at the end,
* an op that every schedule runs, runs; those before a moment run before it.

Every schedule within the budget gives such numbers, and their time is at most its own;
so the least time over all numbers in [0, 1] is a bound. It is Checkmate's relaxation
(Jain et al., MLSys 2020) with a few moments in place of one stage per op, and with no
order assumed inside an interval. An op that runs by halves in two intervals would find
half of its inputs enough; so the same rows stand for windows of several intervals, with
a number for each op that says whether it runs in the window at all. Numbers that are 0
or 1 give a higher bound near the lowest peak, where half a storage would fit and a
whole one does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.planners._linear import Answer, Program, solve
from lowtide.planners.auto._problem import Problem

# Windows are left out of programs that would have more columns with them.
MOST_COLUMNS = 60_000
# What the solver's work counts for: about what it takes.
ROW_SECONDS = 5e-6
ITERATION_SECONDS = 5e-6
ENTRY_SECONDS = 4e-10
WINDOW_ENTRY_SECONDS = 7e-10
ROUND_ENTRY_SECONDS = 7e-7
# The clock ends a program only if something is wrong.
EMERGENCY_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule takes less than `seconds`; infinite if none fits the budget."""

    seconds: float
    is_complete: bool
    alive: tuple[frozenset[int], ...] = ()


class Relaxation:
    """The linear program for one step, budget and list of moments."""

    def __init__(
        self,
        problem: Problem,
        budget: float,
        moments: list[int],
        *,
        windows: bool = False,
    ) -> None:
        self.problem, self.moments = problem, moments
        self.room = budget - problem.resident_bytes
        self.count = len(problem.step.ops)
        self.width = len(problem.size)
        self.intervals = len(moments) + 1
        self.scale = 1.0 / max(problem.step.baseline_seconds, 1e-30)
        self.program = Program()
        seconds: list[float] = [x * self.scale for x in problem.seconds]
        for cost in seconds * self.intervals + [0.0] * (len(moments) * self.width):
            self.program.column(0.0, 1.0, cost=cost)
        self.producers = problem.makers
        self._fix_residents()
        self._once()
        for j in range(self.intervals):
            self._inputs(j)
        for j in range(len(moments)):
            self._moment(j)
        self._outputs()
        self._must()
        self.entry_seconds = ENTRY_SECONDS
        if windows:
            self.entry_seconds = WINDOW_ENTRY_SECONDS
            for first, last in self._windows():
                self._window(first, last)

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
            is_standby = problem.step.ops[number].standby
            if number in problem.never or (is_standby and problem.once[number]):
                for j in range(self.intervals):
                    self.program.upper[self.ran(number, j)] = 0.0
            if is_standby or not problem.once[number]:
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
        room = self.room - problem.fresh_bytes[moment]
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

    def _must(self) -> None:
        """Every schedule runs these ops, and those before a moment before it."""
        for j, moment in enumerate(self.moments):
            for number in sorted(self.problem.ancestors_of(moment)):
                ran = {self.ran(number, i): 1.0 for i in range(j + 1)}
                self.program.row(1.0, np.inf, ran)
        for number in sorted(self.problem.must_run):
            ran = {self.ran(number, j): 1.0 for j in range(self.intervals)}
            self.program.row(1.0, np.inf, ran)

    def _windows(self) -> list[tuple[int, int]]:
        """The windows of several intervals that there is room for."""
        last = self.intervals - 1
        every = [(a, b) for a in range(last) for b in range(a + 1, last + 1)]
        every = [window for window in every if window != (0, last)]  # as `_must` says
        some = [(a, b) for a, b in every if b == last or b == a + 1]
        room = (MOST_COLUMNS - len(self.program.lower)) // max(1, self.count)
        return next((rows for rows in (every, some) if len(rows) <= room), [])

    def _window(self, first: int, last: int) -> None:
        """What holds for the intervals from `first` to `last` as if they were one."""
        problem, program = self.problem, self.program
        ran = [program.column(0.0, 1.0) for _ in range(self.count)]
        inside = range(first, last + 1)

        def from_start(s: int, terms: dict[int, float]) -> None:
            """A storage was there at the start or is made in the window."""
            for maker in self.producers[s]:
                terms[ran[maker]] = -1.0
            if first > 0:
                terms[self.alive(s, first - 1)] = -1.0
            program.row(-np.inf, 0.0, terms)

        for number in range(self.count):
            parts = [self.ran(number, j) for j in inside]
            program.row(-np.inf, 0.0, {ran[number]: 1.0, **dict.fromkeys(parts, -1.0)})
            for part in parts:
                program.row(0.0, np.inf, {ran[number]: 1.0, part: -1.0})
            for s in problem.reads[number]:
                from_start(s, {ran[number]: 1.0})
        is_end = last == self.intervals - 1
        if not is_end:
            for s in range(self.width):
                if not problem.step.storages[s].resident:
                    from_start(s, {self.alive(s, last): 1.0})
        runs = problem.must_run if is_end else problem.ancestors_of(self.moments[last])
        begin = self.moments[first - 1] if first > 0 else -1
        for number in runs:
            if begin in (-1, number) or problem.comes_before(begin, number):
                program.lower[ran[number]] = 1.0

    def solve_whole(self, limit_seconds: float) -> Bound:
        """The least time if every number is 0 or 1, or a bound of it.

        It is above that of numbers in between: half a storage cannot be held. More
        moments never lower it, which in between they may.
        """
        if self.program.is_contradictory():
            return Bound(np.inf, True)
        self.program.integral = [True] * len(self.program.lower)
        each = ROUND_ENTRY_SECONDS * len(self.program.index)
        answer = solve(
            self.program,
            time_limit=EMERGENCY_SECONDS,
            rounds=max(10, int(limit_seconds / each)),
        )
        self.problem.evaluator.spend(each * max(10, answer.rounds))
        if answer.is_infeasible or not np.isfinite(answer.bound):
            # Whatever the reason, it is not believed.
            return Bound(0.0, False)
        seconds = answer.bound / self.scale * (1 - 1e-5)
        return Bound(seconds, answer.is_optimal, self._alive_in(answer))

    def solve(self, limit_seconds: float = np.inf) -> Bound:
        """The least time, or what is known of it after this much work.

        An answer that nothing fits is believed only if it is found without presolve as
        well: on rare programs HiGHS's presolve sees a contradiction where there is
        none.
        """
        if self.program.is_contradictory():
            return Bound(np.inf, True)
        answer = self._answer(limit_seconds, presolve=True)
        if answer.is_infeasible:
            answer = self._answer(limit_seconds, presolve=False)
        if answer.is_infeasible:
            return Bound(np.inf, True)
        if not answer.is_optimal:
            return Bound(0.0, False)
        # The solver's tolerance is 1e-7 on scaled numbers.
        seconds = answer.bound / self.scale * (1 - 1e-5)
        return Bound(seconds, True, self._alive_in(answer))

    def _alive_in(self, answer: Answer) -> tuple[frozenset[int], ...]:
        """What is alive at each moment, if values were found."""
        if not answer.values:
            return ()
        return tuple(
            frozenset(
                s for s in range(self.width) if answer.values[self.alive(s, j)] > 0.5
            )
            for j in range(len(self.moments))
        )

    def _answer(self, limit_seconds: float, *, presolve: bool) -> Answer:
        rows, entries = len(self.program.row_lower), len(self.program.index)
        begin = ROW_SECONDS * rows
        each = ITERATION_SECONDS + self.entry_seconds * entries
        most = min((limit_seconds - begin) / each, 1e9)
        answer = solve(
            self.program,
            time_limit=EMERGENCY_SECONDS,
            relaxed=True,
            iterations=max(100, int(most)),
            presolve=presolve,
        )
        self.problem.evaluator.spend(begin + each * answer.iterations)
        return answer
