"""Code that asks whether it is being compiled is told what eager would tell it.

Some models take another path under `torch.compile`, with other kernels and so other
bits: Mamba an associative scan in place of a loop. Captured is the path that eager
takes, so the answer is no. Torch's own code is told the truth: it asks to keep out what
cannot be captured, and computes the same.

Told no, some code does what no graph can. If it looks at values of the inputs, as
transformers do at their masks, `looks` answers. Otherwise the place is found by the
failure of the capture, and told yes in the next one: the places that asked before the
failure, the last of them first. Where it was for other values, such as those of an
activation, the user is warned, since the other path may round differently.

NOTE(torch>=2.13,<2.16): dynamo's `InstructionTranslator` has `lineno` and `parent`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import _utils
from torch._dynamo.exc import TorchRuntimeError, Unsupported, UserError
from torch._dynamo.external_utils import is_compiling
from torch._subclasses import FakeTensor

from lowtide.engine.capture.formulas import VALUES_DECIDE
from lowtide.engine.notices import warn

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
# How dynamo begins to say that a value decides where the code goes on.
_BRANCHES = "Data-dependent branching"
_STATE = threading.local()
log = logging.getLogger("lowtide.run")


class Answers:
    """What the code of one call is told; `yes` holds where eager's answer breaks it."""

    def __init__(self) -> None:
        self.yes: set[Place] = set()
        self.by_value: set[Place] = set()
        self.asked: list[Place] = []
        self.suspects: list[Place] = []
        self.failure: str | None = None
        self.on_trial: Place | None = None
        self.num_captures = 1
        # The inputs of the call by their ids; in a dry run, what its fakes stand for.
        self.inputs: dict[int, torch.Tensor] = {}

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
                if isinstance(error, VALUES_DECIDE) or _BRANCHES in str(error):
                    assert self.on_trial is not None
                    self.by_value.add(self.on_trial)
                log.info("asked whether it is compiled: %s", self.on_trial)

    @contextmanager
    def knowing(self, inputs: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """Know the values of inputs, each with the tensor that has them."""
        before = self.inputs
        known = {id(v): before.get(id(v), real) for v, real in inputs}
        self.inputs = {
            key: real
            for key, real in known.items()
            if isinstance(real, torch.Tensor) and not isinstance(real, FakeTensor)
        }
        try:
            yield
        finally:
            self.inputs = before

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


def is_capturing() -> bool:
    """Whether what is captured on this thread is to be as in eager."""
    return getattr(_STATE, "answers", None) is not None


def value_of_input(tensor: Any) -> torch.Tensor | None:
    """An input of the call that is being captured, with its values."""
    answers: Answers | None = getattr(_STATE, "answers", None)
    return None if answers is None else answers.inputs.get(id(tensor))


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


def warn_of_values(name: str, answers: Answers) -> None:
    """Say once where a model is told that it is compiled because it looks at values."""
    for file, line in sorted(place[-1] for place in answers.yes & answers.by_value):
        warn(
            f"{name}: line {line} of {file} asks whether it is being compiled, and "
            "looks at values if not, which no plan can. It is told yes. If it computes "
            "something else then, numbers differ from eager's in the last bits: "
            "lowtide.verify tells."
        )
    answers.by_value.clear()
