"""Lower the peak memory of PyTorch training: same numbers, a budget in bytes.

    import lowtide
    lowtide.optimize(model, budget="6 GiB")

Names are resolved when first used, so that planning and the command line do not wait
for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lowtide.step import graph as _graph

__version__ = "0.1.0"

_EXPORTS = {
    "optimize": "engine.api",
    "apply": "engine.api",
    "restore": "engine.api",
    "planned": "engine.api",
    "profile": "engine.api",
    "verify": "engine.api",
    "measure": "engine.api",
    "largest_batch": "engine.batch",
    "plan": "planners._request",
    "Measurement": "engine.meter",
    "Verification": "engine.verify",
    "StepGraph": "step.graph",
    "Op": "step.graph",
    "Storage": "step.graph",
    "Plan": "step.plan",
    "Proof": "step.plan",
    "Run": "step.plan",
    "Free": "step.plan",
    "Timeline": "step.simulate",
    "simulate": "step.simulate",
    "sweep": "planners._sweep",
    "Frontier": "planners._sweep",
    "explain": "reporting.explain",
    "report": "reporting.report",
    "Report": "reporting.report",
    "Reference": "reporting.report",
    "diff": "reporting.diff",
    "Diff": "reporting.diff",
    "export": "reporting.export",
    "LowtideError": "errors",
    "BudgetTooSmallError": "errors",
    "BudgetFormatError": "errors",
    "NoTrainingGraphError": "errors",
    "CaptureError": "errors",
    "PlanMismatchError": "errors",
    "VerificationError": "errors",
    "SolverUnavailableError": "errors",
    "UnsupportedTorchError": "errors",
    "InvalidScheduleError": "errors",
}
_MODULES = ("chains", "planners", "errors", "models", "backend")

if TYPE_CHECKING:
    from lowtide.engine.api import apply as apply
    from lowtide.engine.api import measure as measure
    from lowtide.engine.api import optimize as optimize
    from lowtide.engine.api import planned as planned
    from lowtide.engine.api import profile as profile
    from lowtide.engine.api import restore as restore
    from lowtide.engine.api import verify as verify
    from lowtide.engine.batch import largest_batch as largest_batch
    from lowtide.engine.meter import Measurement as Measurement
    from lowtide.engine.verify import Verification as Verification
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


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(import_module(f"lowtide.{_EXPORTS[name]}"), name)
    if name in _MODULES:
        return import_module(f"lowtide.{name}")
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, *_MODULES, "__version__"])
