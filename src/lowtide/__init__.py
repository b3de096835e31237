"""Lower the peak memory of PyTorch training: same numbers, a budget in bytes.

    import lowtide
    lowtide.optimize(model, budget="6 GiB")

Names are resolved when first used, so that planning and the command line do not wait
for torch.
"""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING

from lowtide.step import graph as _graph

__version__ = "0.1.0"

_NAMES = {
    "engine.api": "optimize apply restore planned profile verify measure",
    "engine.jobs.batch": "largest_batch",
    "engine.checks.meter": "Measurement",
    "engine.checks.verify": "Verification",
    "planners._request": "plan",
    "planners._sweep": "sweep Frontier",
    "reporting.diff": "diff Diff",
    "reporting.explain": "explain",
    "reporting.export": "export",
    "reporting.report": "report Report Reference",
    "step.graph": "StepGraph Op Storage",
    "step.plan": "Plan Proof Run Free",
    "step.simulate": "simulate Timeline",
    "errors": "LowtideError BudgetTooSmallError BudgetFormatError NoTrainingGraphError "
    "CaptureError PlanMismatchError VerificationError SolverUnavailableError "
    "RankError "
    "UnsupportedTorchError InvalidScheduleError",
}
_EXPORTS = {name: home for home, names in _NAMES.items() for name in names.split()}
_MODULES = ("chains", "planners", "errors", "models", "backend")

if TYPE_CHECKING:
    from lowtide.engine.api import apply as apply
    from lowtide.engine.api import measure as measure
    from lowtide.engine.api import optimize as optimize
    from lowtide.engine.api import planned as planned
    from lowtide.engine.api import profile as profile
    from lowtide.engine.api import restore as restore
    from lowtide.engine.api import verify as verify
    from lowtide.engine.checks.meter import Measurement as Measurement
    from lowtide.engine.checks.verify import Verification as Verification
    from lowtide.engine.jobs.batch import largest_batch as largest_batch
    from lowtide.planners._request import plan as plan
    from lowtide.planners._sweep import Frontier as Frontier
    from lowtide.planners._sweep import sweep as sweep
    from lowtide.reporting.diff import Diff as Diff
    from lowtide.reporting.diff import diff as diff
    from lowtide.reporting.explain import explain as explain
    from lowtide.reporting.export import export as export
    from lowtide.reporting.report import Reference as Reference
    from lowtide.reporting.report import Report as Report
    from lowtide.reporting.report import report as report
    from lowtide.step.graph import Op as Op
    from lowtide.step.graph import StepGraph as StepGraph
    from lowtide.step.graph import Storage as Storage
    from lowtide.step.plan import Free as Free
    from lowtide.step.plan import Plan as Plan
    from lowtide.step.plan import Proof as Proof
    from lowtide.step.plan import Run as Run
    from lowtide.step.simulate import Timeline as Timeline
    from lowtide.step.simulate import simulate as simulate


def _find_floor(step: _graph.StepGraph) -> int:
    """The floor of a step; the planners are loaded when the first one is asked for."""
    from lowtide.planners import least_peak_bytes

    return least_peak_bytes(step)


_graph.find_floor = _find_floor


def _import(room: str) -> object:
    """A part of the package. Some libraries draw from Python's generator when they are
    imported, which happens at an hour of our choice and not of the user's."""
    state = random.getstate()
    try:
        return import_module(f"lowtide.{room}")
    finally:
        random.setstate(state)


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(_import(_EXPORTS[name]), name)
    if name in _MODULES:
        return _import(name)
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, *_MODULES, "__version__"])
