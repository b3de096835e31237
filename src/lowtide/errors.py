"""Every error and warning lowtide raises.

Each message has three parts: what was asked, what was found (numbers with units), and
what to do. The facts are attributes as well, so that programs need not read the text.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowtide.step.format import format_bytes

TESTED_TORCH = "torch 2.13 and 2.15"

ACCEPTED_BUDGETS = (
    'a size such as "6 GiB", "6G" or "6GB", a number of bytes such as 6442450944 or '
    '6e9, or a share of the unplanned peak such as "60%"'
)


class LowtideError(Exception):
    """The base of every error lowtide raises."""

    def __str__(self) -> str:
        return " ".join(str(arg) for arg in self.args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take facts, not a message, so the default (cls(*args)) cannot
        # rebuild them. Errors must survive the trip out of a worker process.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[LowtideError], args: tuple[object, ...], facts: dict[str, object]
) -> LowtideError:
    error = cls.__new__(cls, *args)
    super(LowtideError, error).__init__(*args)
    error.__dict__.update(facts)
    return error


class InvalidArgumentError(LowtideError, ValueError):
    """An argument lowtide cannot work with: an unknown name, a contradiction.

    It says what was asked, what is wrong with it, and what to write instead.
    """

    def __init__(self, asked: str, found: str, fix: str) -> None:
        super().__init__(f"{asked}: {_sentence(found)} {_sentence(fix)}")


class BudgetFormatError(LowtideError, ValueError):
    """A budget that is not a size, a number of bytes, or a percentage."""

    def __init__(self, budget: object, reason: str, hint: str = "") -> None:
        self.budget, self.reason = budget, reason
        said = f"budget {budget!r} is not understood: {_sentence(reason)}"
        said += f" {_sentence(hint)}" if hint else ""
        super().__init__(f"{said} Accepted: {ACCEPTED_BUDGETS}.")


class BudgetTooSmallError(LowtideError, ValueError):
    """No plan fits: even with all possible recomputation the step needs more.

    `floor_bytes` is the lowest peak that was found, `blame` says what holds it there,
    such as "parameters 0.46 GiB and layers.11.attn backward 0.86 GiB", and no plan goes
    below `bound_bytes`, as far as that is proven.
    """

    def __init__(
        self, budget_bytes: int, floor_bytes: int, blame: str = "", bound_bytes: int = 0
    ) -> None:
        self.budget_bytes, self.floor_bytes = budget_bytes, floor_bytes
        self.blame, self.bound_bytes = blame, bound_bytes
        budget, floor = format_bytes(budget_bytes), format_bytes(floor_bytes)
        if budget == floor:
            budget = f"{budget} ({budget_bytes} bytes)"
            floor = f"{floor} ({floor_bytes} bytes)"
        held = f" (held by {blame})" if blame else ""
        least = ""
        if bound_bytes >= floor_bytes:
            least = ", and no plan goes lower"
        elif bound_bytes:
            least = f"; no plan goes below {format_bytes(bound_bytes)}"
        super().__init__(
            f"budget {budget} is below {floor}, the lowest peak found for this step"
            f"{held}{least}. Raise the budget to {fitting(floor_bytes)}, shrink the "
            "batch, or run `lowtide explain TARGET --floor` to see what holds it there."
        )


class NoTrainingGraphError(LowtideError, RuntimeError):
    """No forward and backward graph reached lowtide, so nothing was planned."""

    def __init__(self, asked: str, cause: str = "", fix: str = "") -> None:
        self.asked, self.cause = asked, cause
        cause = cause or (
            "the compiled form was bypassed, or nothing in the step requires a gradient"
        )
        fix = fix or (
            "Call the model itself (model(batch), then backward) with gradients "
            "enabled and at least one parameter that requires a gradient; to go back "
            "to plain PyTorch, set LOWTIDE_DISABLE=1"
        )
        super().__init__(
            f"{asked}: 0 training graphs arrived, so no budget is being kept. "
            f"Cause: {_sentence(cause)} {_sentence(fix)}"
        )


class CaptureError(LowtideError, RuntimeError):
    """The training step cannot be turned into a graph.

    `location` is the user's `file:line`. `passed` are the files and lines that the
    error passed through in another process, whose traceback is not available here.
    """

    def __init__(
        self,
        reason: str,
        *,
        op: str = "",
        location: str = "",
        fix: str = "",
        passed: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.reason, self.passed = reason, passed
        self.op, self.location = op, location
        where = (f" at op {op}" if op else "") + (f" ({location})" if location else "")
        fix = fix or (
            "Move the part that depends on data or leaves PyTorch out of the step, or "
            "pass only the submodule that holds the memory"
        )
        super().__init__(
            f"cannot capture the training step{where}: {_sentence(reason)} "
            f"{_sentence(fix)}"
        )


class StepFormatError(LowtideError, ValueError):
    """A step or plan file, or the text form of a step, that cannot be read.

    `field` says where in the file the problem is, such as "ops[3].seconds".
    """

    def __init__(self, found: str, *, path: str | Path = "", field: str = "") -> None:
        self.found, self.path, self.field = found, str(path), field
        where = f" in {path}" if str(path) else ""
        at = f"{field}: " if field else ""
        super().__init__(
            f"the step or plan{where} cannot be read: {at}{_sentence(found)} Write it "
            "again with `save` (or `lowtide profile -o`, `lowtide plan -o`) of this "
            "version."
        )


class PlanMismatchError(LowtideError, ValueError):
    """The plan was made for another graph: other code, shapes, or dtypes.

    `first_difference` says where the two part, such as "op 17: add against mul".
    """

    def __init__(
        self, plan_fingerprint: str, step_fingerprint: str, first_difference: str = ""
    ) -> None:
        self.plan_fingerprint = plan_fingerprint
        self.step_fingerprint = step_fingerprint
        self.first_difference = first_difference
        first = f" First difference: {_sentence(first_difference)}"
        super().__init__(
            f"this plan is for step {plan_fingerprint}, but the step at hand is "
            f"{step_fingerprint}.{first if first_difference else ''} Use the model, "
            "batch shape and dtypes the plan was made with, or plan again with "
            "lowtide.plan."
        )


class InvalidScheduleError(LowtideError, ValueError):
    """A schedule that cannot be executed, with the first item that breaks it.

    `index` is the position of that item, or the schedule's length if its end is what
    is wrong (an output was never made).
    """

    def __init__(self, index: int, reason: str, item: object = "") -> None:
        self.index, self.reason, self.item = index, reason, item
        shown = f" ({item})" if item != "" else ""
        super().__init__(
            f"the schedule is invalid: item {index}{shown}: {_sentence(reason)} "
            "Change this item or an earlier one; every storage an op reads must be "
            "alive when it runs."
        )


class VerificationError(LowtideError, RuntimeError):
    """The planned step differs from the plain one, or its real peak is too high.

    `what` is the value that differs, such as "gradient of layers.3.weight", or "peak";
    `difference` the first difference, with numbers.
    """

    def __init__(
        self,
        what: str,
        difference: str,
        *,
        predicted_peak_bytes: int | None = None,
        measured_peak_bytes: int | None = None,
    ) -> None:
        self.what, self.difference = what, difference
        self.predicted_peak_bytes = predicted_peak_bytes
        self.measured_peak_bytes = measured_peak_bytes
        known = {"predicted": predicted_peak_bytes, "measured": measured_peak_bytes}
        peaks = [f"{k} {format_bytes(v)}" for k, v in known.items() if v is not None]
        shown = f" Peak: {', '.join(peaks)}." if peaks else ""
        super().__init__(
            f"verification failed at {what}: {_sentence(difference)}{shown} The plan "
            "has been withdrawn. Run without lowtide (LOWTIDE_DISABLE=1) and report "
            "this with the saved step and plan."
        )


class RankError(LowtideError, RuntimeError):
    """Another process that trains the same model cannot go on, so this one stops too.

    `rank` is that process, `reason` what it says.
    """

    def __init__(
        self,
        rank: int,
        reason: str,
        fix: str = "Change what it asks for on all ranks alike",
    ) -> None:
        self.rank, self.reason, self.fix = rank, reason, fix
        super().__init__(
            f"rank {rank} cannot go on, and neither can those that train with it: "
            f"{_sentence(reason)} {_sentence(fix)}"
        )


class SolverUnavailableError(LowtideError, ImportError):
    """A solver is not installed, or cannot be loaded in this process."""

    def __init__(self, solver: str, reason: str) -> None:
        self.solver, self.reason = solver, reason
        super().__init__(
            f"solver {solver} cannot be used: {_sentence(reason)} Install it with `pip "
            f"install {solver}`, or choose a planner that needs no solver (`lowtide "
            "planners` lists them)."
        )


class UnsupportedTorchError(LowtideError, RuntimeError):
    """This torch does something lowtide has not been tested with."""

    def __init__(self, found: str, version: str = "") -> None:
        self.found, self.version = found, version
        running = f"torch {version}" if version else "this torch"
        super().__init__(
            f"lowtide cannot run on {running}: {_sentence(found)} Tested with "
            f"{TESTED_TORCH}: install such a version, or set LOWTIDE_DISABLE=1 to "
            "train without lowtide."
        )


class MissingPackageError(LowtideError, ImportError):
    """An optional package that is not installed, and what it is needed for."""

    def __init__(self, package: str, purpose: str, install: str) -> None:
        self.package = package
        super().__init__(
            f"{package} is not installed: {_sentence(purpose)} Install it with "
            f"`{install}`."
        )


class OutputError(LowtideError, OSError):
    """A file that cannot be written, or that exists and may not be replaced."""

    def __init__(self, path: str, reason: str, fix: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot write {path}: {_sentence(reason)} {_sentence(fix)}")


class TargetError(LowtideError, RuntimeError):
    """The user's own code, named on the command line, raised an error.

    `location` is the user's `file:line` where that happened, `code` the line there.
    """

    def __init__(
        self, target: str, raised: str, *, location: str = "", code: str = ""
    ) -> None:
        self.target, self.raised = target, raised
        self.location, self.code = location, code
        where = f" At {location}" + (f": `{code}`." if code else ".")
        super().__init__(
            f"{target} raised {_sentence(raised)}{where if location else ''} Run it "
            "by itself in Python to see more, and fix it there."
        )


class LowtideWarning(UserWarning):
    """Something that does not stop lowtide, but that you should know."""


def fitting(num_bytes: int) -> str:
    """The budget to ask for that holds these bytes, in as few digits as do."""
    if num_bytes < 2**20:
        return f"{num_bytes}B"
    return f"{math.ceil(10 * num_bytes / 2**20) / 10:.1f}MiB"


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, what caused that, however torch wraps it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        inner = getattr(link, "inner_exception", None)
        link = inner or link.__cause__ or link.__context__


def places_of(error: BaseException) -> Iterator[tuple[str, int]]:
    """Files and lines that an error itself passed through, without its causes.

    While torch compiles, the user's lines are in the text.
    """
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line
    yield from getattr(error, "passed", ())
    _, _, users = str(error).partition("from user code:")
    for file, line in re.findall(r'File "([^"]+)", line (\d+)', users):
        yield file, int(line)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."
