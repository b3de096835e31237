"""Let dynamo go on behind a graph break where it would leave a function uncaptured.

NOTE(torch>=2.13,<2.14): where a graph breaks in a loop, dynamo leaves all the function,
lest there be a graph for each round. Its code is valid either way, as it says at
`maybe_has_backedge`, which finds loops. And it never begins a graph in the files of
`torch.nn`, such as that of `Sequential`. A mixture of experts, an iteration that stops
by itself and a transformer that looks at its mask are planned in pieces only because
both are allowed here, on threads that ask for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch._dynamo import trace_rules
from torch._dynamo.symbolic_convert import InstructionTranslatorBase

_STATE = threading.local()
_MODULES = str(Path(nn.modules.__file__).parent)
_finds_loop = InstructionTranslatorBase.maybe_has_backedge
_files_to_capture: Any = trace_rules.get_legacy_mod_inlinelist


@contextmanager
def going_on(is_wanted: bool) -> Iterator[None]:
    """Whether pieces are captured within loops and in torch's own modules."""
    before = _goes_on()
    _STATE.goes_on = is_wanted
    try:
        yield
    finally:
        _STATE.goes_on = before


def _goes_on() -> bool:
    return getattr(_STATE, "goes_on", False)


def _has_backedge(translator: Any) -> bool:
    return not _goes_on() and _finds_loop(translator)


def _inlinelist() -> set[str]:
    files = _files_to_capture()
    return {*files, _MODULES} if _goes_on() else files


InstructionTranslatorBase.maybe_has_backedge = _has_backedge  # type: ignore[method-assign]
trace_rules.get_legacy_mod_inlinelist = _inlinelist  # type: ignore[assignment]
