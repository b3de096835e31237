"""A linear model through HiGHS, in this process, with a time limit and a warm start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide.errors import SolverUnavailableError
from lowtide.planners._frontier import Rows


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


def load_highs() -> Any:
    """The solver's module, or an error that says how to get it."""
    try:
        import highspy
    except ImportError as error:
        raise SolverUnavailableError("highspy", str(error)) from error
    return highspy


def solve(
    rows: Rows,
    *,
    time_limit: float,
    relaxed: bool = False,
    start: tuple[list[int], list[float]] | None = None,
    target: float | None = None,
) -> Answer:
    """Minimise; with `relaxed` the integral columns may take any value.

    `start` gives values of integral columns to begin with; `target` is an objective
    that is good enough.
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
    highs.passModel(_lp(highspy, rows, relaxed))
    if start is not None and not relaxed:
        index = np.asarray(start[0], np.int32)
        highs.setSolution(len(index), index, np.asarray(start[1], np.float64))
    highs.run()
    status = highs.getModelStatus()
    states = highspy.HighsModelStatus
    info = highs.getInfo()
    found = (
        info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    )
    optimal = status == states.kOptimal
    bound = info.objective_function_value if optimal else -float("inf")
    if not optimal and not relaxed and np.isfinite(info.mip_dual_bound):
        bound = info.mip_dual_bound
    return Answer(
        values=tuple(highs.getSolution().col_value) if found else (),
        bound=bound,
        is_optimal=optimal,
        is_infeasible=status == states.kInfeasible,
        seconds=time.monotonic() - began,
    )


def _lp(highspy: Any, rows: Rows, relaxed: bool) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_ = len(rows.lower)
    lp.num_row_ = len(rows.row_lower)
    lp.col_cost_ = np.asarray(rows.cost)
    lp.col_lower_ = np.asarray(rows.lower)
    lp.col_upper_ = np.asarray(rows.upper)
    lp.row_lower_ = np.asarray(rows.row_lower)
    lp.row_upper_ = np.asarray(rows.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.asarray(rows.starts, np.int32)
    lp.a_matrix_.index_ = np.asarray(rows.index, np.int32)
    lp.a_matrix_.value_ = np.asarray(rows.value)
    if not relaxed:
        kinds = highspy.HighsVarType
        lp.integrality_ = [
            kinds.kInteger if i else kinds.kContinuous for i in rows.integral
        ]
    return lp
