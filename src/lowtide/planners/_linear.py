"""Linear programs: built column by column and row by row, solved by HiGHS."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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

    def columns(self, cost: Sequence[float]) -> int:
        """Number of the first of several new columns between 0 and 1."""
        first = len(self.lower)
        self.lower.extend([0.0] * len(cost))
        self.upper.extend([1.0] * len(cost))
        self.cost.extend(cost)
        self.integral.extend([False] * len(cost))
        return first

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
class Start:
    """Values of some integral columns to begin with."""

    columns: list[int]
    values: list[float]


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
    seconds: float
    iterations: int = 0


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
    start: Start | None = None,
    target: float | None = None,
) -> Answer:
    """Minimise; with `relaxed` the integral columns may take any value.

    `target` is an objective that is good enough.
    """
    highspy = load_highs()
    began = time.monotonic()
    highs = highspy.Highs()
    for name, value in {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "time_limit": max(0.05, time_limit),
        "mip_rel_gap": 1e-9,
        "mip_abs_gap": 1e-7,
    }.items():
        highs.setOptionValue(name, value)
    if target is not None:
        highs.setOptionValue("objective_target", target)
    highs.passModel(_model(highspy, program, relaxed))
    if start is not None and not relaxed:
        index = np.asarray(start.columns, np.int32)
        highs.setSolution(len(index), index, np.asarray(start.values, np.float64))
    highs.run()
    status = highs.getModelStatus()
    states = highspy.HighsModelStatus
    info = highs.getInfo()
    has_values = (
        info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    )
    optimal = status == states.kOptimal
    bound = info.objective_function_value if optimal else -float("inf")
    if not optimal and not relaxed and np.isfinite(info.mip_dual_bound):
        bound = info.mip_dual_bound
    return Answer(
        values=tuple(highs.getSolution().col_value) if has_values else (),
        bound=bound,
        is_optimal=optimal,
        is_infeasible=status == states.kInfeasible,
        seconds=time.monotonic() - began,
        iterations=max(0, info.simplex_iteration_count),
    )


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
