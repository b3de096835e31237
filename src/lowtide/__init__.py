"""Lower the peak memory of PyTorch training: same numbers, a budget in bytes.

    import lowtide
    lowtide.optimize(model, budget="6 GiB")

Names are resolved when first used, so that planning and the command line do not wait
for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_EXPORTS = {
    "optimize": "_api",
    "apply": "_api",
    "restore": "_api",
    "planned": "_api",
    "profile": "_api",
    "verify": "_api",
    "measure": "_api",
    "largest_batch": "_batch",
    "plan": "_planning",
    "Measurement": "_meter",
    "Verification": "_verify",
    "StepGraph": "_graph",
    "Op": "_graph",
    "Storage": "_graph",
    "Plan": "_plan",
    "Proof": "_plan",
    "Run": "_plan",
    "Free": "_plan",
    "Timeline": "_simulate",
    "simulate": "_simulate",
    "sweep": "_sweep",
    "Frontier": "_sweep",
    "explain": "_explain",
    "report": "_report",
    "Report": "_report",
    "Reference": "_report",
    "diff": "_diff",
    "Diff": "_diff",
    "export": "_report._export",
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
    from lowtide._api import apply as apply
    from lowtide._api import measure as measure
    from lowtide._api import optimize as optimize
    from lowtide._api import planned as planned
    from lowtide._api import profile as profile
    from lowtide._api import restore as restore
    from lowtide._api import verify as verify
    from lowtide._batch import largest_batch as largest_batch
    from lowtide._diff import Diff as Diff
    from lowtide._diff import diff as diff
    from lowtide._explain import explain as explain
    from lowtide._graph import Op as Op
    from lowtide._graph import StepGraph as StepGraph
    from lowtide._graph import Storage as Storage
    from lowtide._meter import Measurement as Measurement
    from lowtide._plan import Free as Free
    from lowtide._plan import Plan as Plan
    from lowtide._plan import Proof as Proof
    from lowtide._plan import Run as Run
    from lowtide._planning import plan as plan
    from lowtide._report import Reference as Reference
    from lowtide._report import Report as Report
    from lowtide._report import report as report
    from lowtide._report._export import export as export
    from lowtide._simulate import Timeline as Timeline
    from lowtide._simulate import simulate as simulate
    from lowtide._sweep import Frontier as Frontier
    from lowtide._sweep import sweep as sweep
    from lowtide._verify import Verification as Verification


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(import_module(f"lowtide.{_EXPORTS[name]}"), name)
    if name in _MODULES:
        return import_module(f"lowtide.{name}")
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, *_MODULES, "__version__"])
