"""Code that asks whether it is being compiled is told what eager would tell it.

Some models take another path under `torch.compile`, with other kernels and so other
bits: Mamba an associative scan in place of a loop. Captured is the path that eager
takes, so the answer is no. Torch's own code is told the truth: it asks to keep out what
cannot be captured, and computes the same.

Told no, some code looks at values, as transformers do at their masks, and no graph can.
Such a place is found by the failure of the capture, and told yes in the next one: the
places that asked before the failure, the last of them first. That is logged, not warned
of: what such code computes in another way is mostly the same, as an explicit mask is in
place of a flag, and nearly all transformers do it.

NOTE(torch>=2.13,<2.16): dynamo's `InstructionTranslator` has `lineno` and `parent`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import _utils
from torch._dynamo.exc import TorchRuntimeError, Unsupported, UserError
from torch._dynamo.external_utils import is_compiling

# A line of code that asks, with the lines by which the question reaches torch.
Place = tuple[tuple[str, int], ...]

QUESTIONS: frozenset[Any] = frozenset(
    {
        torch.compiler.is_compiling,
        torch.compiler.is_dynamo_compiling,
        is_compiling,
        _utils.is_compiling,
    }
)
_TORCH = f"{Path(torch.__file__).parent}/"
_MOST_CAPTURES = 8
_STATE = threading.local()
log = logging.getLogger("lowtide.run")


class Answers:
    """What the code of one call is told; `yes` holds where eager's answer breaks it."""

    def __init__(self) -> None:
        self.yes: set[Place] = set()
        self.asked: list[Place] = []
        self.suspects: list[Place] = []
        self.failure: str | None = None
        self.on_trial: Place | None = None
        self.num_captures = 1

    def capture(
        self, call: Callable[[], Any], failures: tuple[type[Exception], ...]
    ) -> Any:
        """Call it, again with other answers where these failures show it is needed."""
        while True:
            self.asked.clear()
            try:
                with self.given():
                    return call()
            except failures as error:
                if not self.concede(str(error)):
                    raise
                log.info("asked whether it is compiled: %s", self.on_trial)

    @contextmanager
    def given(self) -> Iterator[None]:
        """Answer on this thread."""
        before = getattr(_STATE, "answers", None)
        _STATE.answers = self
        try:
            yield
        finally:
            _STATE.answers = before

    def concede(self, failure: str) -> bool:
        """Whether there is a place left to be told yes, because of this failure."""
        if failure != self.failure:
            self.failure = failure
            self.suspects = [p for p in self.asked if p not in self.yes]
        elif self.on_trial is not None:
            self.yes.discard(self.on_trial)
        self.on_trial = None
        if not self.suspects or self.num_captures == _MOST_CAPTURES:
            return False
        self.num_captures += 1
        self.on_trial = self.suspects.pop()
        self.yes.add(self.on_trial)
        return True


# Where a graph ends if it must not.
BREAKS = (Unsupported, UserError, TorchRuntimeError)


def is_told_no(tx: Any) -> bool:
    """Whether code that asks here, while dynamo follows it, is told what eager says."""
    answers: Answers | None = getattr(_STATE, "answers", None)
    place = _place_of(tx)
    if answers is None or place[-1][0].startswith(_TORCH):
        return False
    if place not in answers.asked:
        answers.asked.append(place)
    return place not in answers.yes


def _place_of(tx: Any) -> Place:
    """Where it is asked: libraries ask through functions of theirs, named `is_...`."""
    lines: list[tuple[str, int]] = []
    while tx is not None:
        lines.append((tx.f_code.co_filename, tx.lineno))
        if not tx.f_code.co_name.startswith("is_"):
            break
        tx = tx.parent
    return tuple(lines)


def log_yes(name: str, yes: set[Place], told: set[str]) -> None:
    """Say once where a model is told that it is compiled."""
    if yes and "compiled" not in told:
        told.add("compiled")
        file, line = min(yes)[-1]
        log.info(
            "%s: line %d of %s asks whether it is being compiled, and looks at values "
            "if not, which no plan can. It is told yes. If it computes something else "
            "then, numbers differ from eager's in the last bits: lowtide.verify tells.",
            name,
            line,
            file,
        )
