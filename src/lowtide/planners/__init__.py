"""The planners: each a file with one function, all with the same signature.

`planners/NAME.py` defines

    def plan(step, budget_bytes=None, *, time_limit=10.0) -> Plan

that returns the fastest plan it finds whose peak is at most `budget_bytes`, or, without
a budget, the plan with the lowest peak it finds. It raises `BudgetTooSmallError` with
that lowest peak if nothing it finds fits. Its module docstring is its page in the docs.
The name of the file is the name of the planner everywhere. Other packages add planners
through the entry-point group `lowtide.planners` (name = "module:plan"). For those who
write one: `saved_by_baseline` lists what could be dropped, `from_kept` makes a schedule
of what is not, and `make_plan` turns any schedule into a plan.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from lowtide.errors import InvalidArgumentError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import from_kept as from_kept
from lowtide.step.schedule import make_plan as make_plan
from lowtide.step.schedule import saved_by_baseline as saved_by_baseline

PlanFunction = Callable[..., Plan]

# From the simplest to the best, the order in which tables list them.
_ORDER = (
    "keep_all recompute_all chen_sqrt chen_greedy hong_static hong_dynamic feng rotor "
    "mu_two dtr checkmate auto"
).split()


@dataclass(frozen=True, slots=True)
class Planner:
    """A planner under its name. `plan` is the function; `doc` its module docstring."""

    name: str
    plan: PlanFunction
    doc: str


def available() -> tuple[str, ...]:
    """The names of every planner, built in and installed."""
    here = [m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_"]
    here.sort(key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))
    others = sorted(e.name for e in entry_points(group="lowtide.planners"))
    return (*here, *(n for n in others if n not in here))


@cache
def load(name: str) -> Planner:
    """The planner of this name; its module is imported only now."""
    if name not in available():
        close = get_close_matches(name, available(), n=1)
        raise InvalidArgumentError(
            f"planner={name!r}",
            "no planner has this name" + (f"; {close[0]!r} is close" if close else ""),
            f"Use one of: {', '.join(available())}",
        )
    if name in (m.name for m in pkgutil.iter_modules(__path__)):
        module = import_module(f"lowtide.planners.{name}")
        return Planner(name, module.plan, inspect.getdoc(module) or "")
    function = next(iter(entry_points(group="lowtide.planners", name=name))).load()
    return Planner(name, function, inspect.getdoc(inspect.getmodule(function)) or "")


def least_peak_bytes(step: StepGraph) -> int:
    """The lowest peak that the best planner finds on this step."""
    return load("auto").plan(step, None).peak_bytes
