"""The `torch.compile` backend: `torch.compile(model, backend="lowtide", options=...)`.

The same engine as `lowtide.optimize`, reached through torch's own front door. Each
graph is planned when it arrives, within what earlier graphs of the step leave of the
budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import CompileContext

from lowtide.engine.graphs.compile import Inner, compile_with
from lowtide.engine.graphs.watch import Watch
from lowtide.engine.notices import warn
from lowtide.engine.planning.decide import Planning
from lowtide.engine.planning.settings import Settings
from lowtide.errors import InvalidArgumentError

_NAME = 'torch.compile(backend="lowtide")'
_OPTIONS = ("budget", "planner", "time_limit", "cache", "inner")
_PLANNING: dict[Settings, Planning] = {}


def lowtide(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one captured graph under a budget.

    Options: `budget` (required, unless `LOWTIDE_BUDGET` is set), `planner`,
    `time_limit`, `cache`, `inner`, as in `lowtide.optimize`.
    """
    if mode is not None:
        raise InvalidArgumentError(
            f"mode={mode!r}", "this backend has no modes", "Leave it out"
        )
    options = dict(options or {})
    inner: Inner = options.pop("inner", "eager")
    if inner not in ("eager", "inductor"):
        raise InvalidArgumentError(
            f"inner={inner!r}", "it is neither", "Write 'eager' or 'inductor'"
        )
    settings = _settings(options)
    if os.environ.get("LOWTIDE_DISABLE") == "1":
        return gm.forward
    _warn_of_the_limit()
    # Graphs with the same options share one ledger, which knows what each forward holds
    # for a backward that may still come: they may be one step's.
    planning = _PLANNING.setdefault(settings, Planning(_NAME, settings, (), Watch()))
    planning.start_anew()
    backend = compile_with(planning.decide_next, planning.watch, inner=inner)
    return backend(gm, example_inputs)


def _warn_of_the_limit() -> None:
    """Say it before torch stops asking: further shapes would run without a budget."""
    now = CompileContext.current_compile_id()
    limit = torch._dynamo.config.recompile_limit
    if now is not None and (now.frame_compile_id or 0) == limit - 1:
        warn(
            f"{_NAME}: this is graph {limit} of one function, "
            "and torch.compile stops there (torch._dynamo.config.recompile_limit): "
            "further shapes will run under no budget. Raise the limit, or use "
            "lowtide.optimize, which has none."
        )


def _settings(options: dict[str, Any]) -> Settings:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise InvalidArgumentError(
            f"options={{{unknown[0]!r}: ...}}",
            "the backend has no such option",
            f"Use {', '.join(_OPTIONS)}",
        )
    given = {
        "budget": os.environ.get("LOWTIDE_BUDGET"),
        "planner": os.environ.get("LOWTIDE_PLANNER") or "auto",
        **options,
    }
    if given["budget"] is None and os.environ.get("LOWTIDE_DISABLE") != "1":
        raise InvalidArgumentError(
            _NAME,
            "no budget was given and LOWTIDE_BUDGET is not set",
            'Write options={"budget": "6 GiB"}',
        )
    return Settings(**given)
