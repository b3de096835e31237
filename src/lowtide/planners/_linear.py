"""Linear programs: built column by column and row by row, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowtide.errors import SolverUnavailableError


@dataclass(slots=True)
class Program:
    """A linear program under construction: columns with bounds and costs, sparse rows.

    The bounds of a column may be changed until the program is solved.
    """

    lower: list[float] = field(default_factory=list[float])
    upper: list[float] = field(default_factory=list[float])
    cost: list[float] = field(default_factory=list[float])
    integral: list[bool] = field(default_factory=list[bool])
    row_lower: list[float] = field(default_factory=list[float])
    row_upper: list[float] = field(default_factory=list[float])
    starts: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list[int])
    value: list[float] = field(default_factory=list[float])

    def column(
        self, lower: float, upper: float, *, cost: float = 0.0, integral: bool = False
    ) -> int:
        """Number of a new column."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.cost.append(cost)
        self.integral.append(integral)
        return len(self.lower) - 1

    def row(self, lower: float, upper: float, terms: Mapping[int, float]) -> None:
        """Add lower <= sum of terms <= upper."""
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        self.index.extend(terms.keys())
        self.value.extend(terms.values())
        self.starts.append(len(self.index))

    def is_contradictory(self) -> bool:
        """Whether some column may take no value at all."""
        return bool(np.any(np.asarray(self.lower) > np.asarray(self.upper)))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the solver found: `values` is empty if it found nothing.

    `bound` is what the objective cannot fall below, `is_optimal` and `is_infeasible`
    are proven.
    """

    values: tuple[float, ...]
    bound: float
    is_optimal: bool
    is_infeasible: bool
    iterations: int
    rounds: int


def load_highs() -> Any:
    """The solver's module, or an error that says how to get it."""
    try:
        import highspy
    except ImportError as error:
        raise SolverUnavailableError("highspy", str(error)) from error
    return highspy


def solve(
    program: Program,
    *,
    time_limit: float,
    relaxed: bool = False,
    start: Mapping[int, float] | None = None,
    target: float | None = None,
    iterations: int | None = None,
    rounds: int | None = None,
    presolve: bool = True,
) -> Answer:
    """Minimise; with `relaxed` the integral columns may take any value.

    `start` holds values of some integral columns to begin with, `target` is an
    objective that is good enough, `iterations` the most steps of the simplex method and
    `rounds` the most rounds of a program in whole numbers: unlike the time they do not
    depend on the machine.
    """
    highspy = load_highs()
    highs = highspy.Highs()
    options = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "time_limit": max(0.05, time_limit),
        "mip_rel_gap": 1e-9,
        "mip_abs_gap": 1e-7,
        **({} if target is None else {"objective_target": target}),
    }
    for name, value in options.items():
        highs.setOptionValue(name, value)
    if iterations is not None:
        highs.setOptionValue("simplex_iteration_limit", iterations)
    count = _Rounds(rounds)
    if rounds is not None:
        # What is wanted of such a program is its bound: plans come from elsewhere.
        highs.setOptionValue("mip_heuristic_effort", 0.0)
        highs.cbMipInterrupt.subscribe(count.look)
    if not presolve:
        highs.setOptionValue("presolve", "off")
    highs.passModel(_model(highspy, program, relaxed))
    if start is not None and not relaxed:
        index, values = np.array([*start], np.int32), np.array([*start.values()], float)
        highs.setSolution(len(index), index, values)
    highs.run()
    info = highs.getInfo()
    feasible = highspy.SolutionStatus.kSolutionStatusFeasible
    status = highs.getModelStatus()
    optimal = status == highspy.HighsModelStatus.kOptimal
    bound = info.objective_function_value if optimal else -float("inf")
    if not optimal and not relaxed and np.isfinite(info.mip_dual_bound):
        bound = info.mip_dual_bound
    has_values = info.primal_solution_status == feasible
    return Answer(
        values=tuple(highs.getSolution().col_value) if has_values else (),
        bound=bound,
        is_optimal=optimal,
        is_infeasible=status == highspy.HighsModelStatus.kInfeasible,
        iterations=max(0, info.simplex_iteration_count),
        rounds=count.done,
    )


class _Rounds:
    """Counts how often the solver asks whether to go on, and says no in the end."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.done = 0

    def look(self, event: Any) -> None:
        self.done += 1
        if self.most is not None and self.done >= self.most:
            event.data_in.user_interrupt = True


def _model(highspy: Any, program: Program, relaxed: bool) -> Any:
    model = highspy.HighsLp()
    model.num_col_ = len(program.lower)
    model.num_row_ = len(program.row_lower)
    model.col_cost_ = np.asarray(program.cost)
    model.col_lower_ = np.asarray(program.lower)
    model.col_upper_ = np.asarray(program.upper)
    model.row_lower_ = np.asarray(program.row_lower)
    model.row_upper_ = np.asarray(program.row_upper)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.asarray(program.starts, np.int32)
    model.a_matrix_.index_ = np.asarray(program.index, np.int32)
    model.a_matrix_.value_ = np.asarray(program.value)
    if not relaxed:
        kinds = highspy.HighsVarType
        model.integrality_ = [
            kinds.kInteger if i else kinds.kContinuous for i in program.integral
        ]
    return model
