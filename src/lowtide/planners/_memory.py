"""Answers remembered for as long as their step lives.

The step itself stays as it was: what is remembered stands here, and goes when the step
does. A question names everything that its answer depends on, so that what is recalled
is what asking again would find.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from lowtide.step.graph import StepGraph

_Answer = TypeVar("_Answer")

# By the identity of the step: equal steps are different objects, and hashing one whole
# would take longer than some answers.
_answers: dict[int, dict[Hashable, Any]] = {}


def recall(
    step: StepGraph,
    question: Hashable,
    find: Callable[[], _Answer],
    *,
    is_final: Callable[[_Answer], bool] = lambda _: True,
) -> _Answer:
    """The answer to a question about a step, looked for the first time it is asked.

    An answer that is not final is given, but not remembered.
    """
    identity = id(step)
    if identity not in _answers:
        _answers[identity] = {}
        weakref.finalize(step, _answers.pop, identity).atexit = False
    known = _answers[identity]
    if question not in known:
        answer = find()
        if not is_final(answer):
            return answer
        known[question] = answer
    return known[question]
