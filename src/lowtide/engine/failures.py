"""Errors on their way through dynamo, and why a graph could not be captured."""

from __future__ import annotations

from lowtide.errors import LowtideError, causes_of


def explain_failure(
    error: BaseException, handled: BaseException | None = None
) -> BaseException:
    """Our own error out of the layers that torch wraps around it.

    `handled` is what the user's code was handling when it called: not our affair.
    """
    for seen in causes_of(error):
        if seen is handled:
            break
        if isinstance(seen, LowtideError):
            return seen
    return error


class Refusal(BaseException):
    """An error of ours on its way through dynamo, which goes on behind all others."""

    def __init__(self, error: LowtideError) -> None:
        super().__init__(str(error))
        self.error = error


def reason_of(error: BaseException) -> str:
    """Why a graph could not be captured, in one line."""
    cause = explain_failure(error)
    while (inner := getattr(cause, "inner_exception", None)) is not None:
        cause = inner
    line = next((t for t in str(cause).splitlines() if t.strip()), "")
    is_ours = isinstance(cause, LowtideError)
    return line if is_ours else f"{type(cause).__name__}: {line}"
