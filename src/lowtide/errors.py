"""Every error and warning lowtide raises.

Each message has three parts: what was asked, what was found (numbers with units), and
what to do. The facts are attributes as well, so that programs need not read the text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.step.format import format_bytes

TESTED_TORCH = "torch>=2.13,<2.14"

ACCEPTED_BUDGETS = (
    'a size such as "6 GiB" or "6GB", a whole number of bytes such as 6442450944, or '
    'a share of the baseline peak such as "60%"'
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

    Args:
        asked: What the caller wrote, e.g. `planner="chan_sqrt"`.
        found: What is wrong with it, e.g. "no planner has this name".
        fix: What to write instead, e.g. "Use one of: ...".
    """

    def __init__(self, asked: str, found: str, fix: str) -> None:
        super().__init__(f"{asked}: {_sentence(found)} {_sentence(fix)}")


class BudgetFormatError(LowtideError, ValueError):
    """A budget that is not a size, a number of bytes, or a percentage."""

    def __init__(self, budget: object, reason: str, hint: str = "") -> None:
        self.budget = budget
        self.reason = reason
        parts = [
            f"budget {budget!r} is not understood: {_sentence(reason)}",
            _sentence(hint),
            f"Accepted: {ACCEPTED_BUDGETS}.",
        ]
        super().__init__(" ".join(part for part in parts if part))


class BudgetTooSmallError(LowtideError, ValueError):
    """No plan fits: even with all possible recomputation the step needs more.

    Args:
        budget_bytes: The peak that was asked for.
        floor_bytes: The lowest peak that was found.
        blame: What holds the floor there, e.g. "parameters 0.46 GiB, gradients 0.46
            GiB and layers.11.attn backward 0.86 GiB".
    """

    def __init__(self, budget_bytes: int, floor_bytes: int, blame: str = "") -> None:
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes
        self.blame = blame
        budget, floor = _told_apart(budget_bytes, floor_bytes)
        held = f" (held by {blame})" if blame else ""
        super().__init__(
            f"budget {budget} is below the floor {floor} of this step{held}. Raise the "
            f"budget to at least {floor_bytes} bytes, shrink the batch, or run "
            "`lowtide explain --floor` to see what holds the floor."
        )


class NoTrainingGraphError(LowtideError, RuntimeError):
    """No forward and backward graph reached lowtide, so nothing was planned.

    Args:
        asked: The call that was made, e.g. "lowtide.optimize(Sequential)".
        cause: Why nothing arrived, as far as it is known.
        fix: What to do instead.
    """

    def __init__(self, asked: str, cause: str = "", fix: str = "") -> None:
        self.asked = asked
        self.cause = cause
        cause = cause or (
            "the compiled form was bypassed, or nothing in the step requires a gradient"
        )
        fix = fix or (
            "Call the model itself (model(batch), then backward) with gradients "
            "enabled and at least one parameter that requires a gradient; to go back "
            "to plain PyTorch set LOWTIDE_DISABLE=1"
        )
        super().__init__(
            f"{asked}: 0 training graphs arrived, so no budget is being kept. "
            f"Cause: {_sentence(cause)} {_sentence(fix)}"
        )


class CaptureError(LowtideError, RuntimeError):
    """The training step cannot be turned into a graph.

    Args:
        reason: What stopped the capture, in torch's words where it is torch's.
        op: The operation it happened at.
        location: The user's `file:line`.
        fix: What to do.
        passed: Files and lines that the error passed through in another process, of
            which no traceback is here.
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
        self.reason = reason
        self.passed = passed
        self.op = op
        self.location = location
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

    Args:
        found: What is wrong with it, e.g. "line 3: unknown flag 'randon'".
        path: The file, if it was one.
        field: Where in it, e.g. "ops[3].seconds".
    """

    def __init__(self, found: str, *, path: str | Path = "", field: str = "") -> None:
        self.found = found
        self.path = str(path)
        self.field = field
        where = f" in {path}" if str(path) else ""
        at = f"{field}: " if field else ""
        super().__init__(
            f"the step or plan{where} cannot be read: {at}{_sentence(found)} Write it "
            "again with "
            "`save` (or `lowtide profile -o`, `lowtide plan -o`) of this version."
        )


class PlanMismatchError(LowtideError, ValueError):
    """The plan was made for another graph: other code, shapes, or dtypes.

    Args:
        plan_fingerprint: The fingerprint of the step the plan was made for.
        step_fingerprint: The fingerprint of the step it was to be applied to.
        first_difference: Where the two part, e.g. "op 17: add against mul".
    """

    def __init__(
        self,
        plan_fingerprint: str,
        step_fingerprint: str,
        first_difference: str = "",
    ) -> None:
        self.plan_fingerprint = plan_fingerprint
        self.step_fingerprint = step_fingerprint
        self.first_difference = first_difference
        first = ""
        if first_difference:
            first = f" First difference: {_sentence(first_difference)}"
        super().__init__(
            f"this plan is for step {plan_fingerprint}, but the step at hand is "
            f"{step_fingerprint}.{first} Use the model, batch shape and dtypes the "
            "plan was made with, or plan again with lowtide.plan."
        )


class InvalidScheduleError(LowtideError, ValueError):
    """A schedule that cannot be executed, with the first item that breaks it.

    Args:
        index: The position of that item, or the schedule's length if it is the end
            that is wrong (an output was never made).
        reason: What is wrong with it.
        item: The item, e.g. "Run(3)".
    """

    def __init__(self, index: int, reason: str, item: object = "") -> None:
        self.index = index
        self.reason = reason
        self.item = item
        shown = f" ({item})" if item != "" else ""
        super().__init__(
            f"the schedule is invalid: item {index}{shown}: {_sentence(reason)} "
            "Change this item or an earlier one; every storage an op reads must be "
            "alive when it runs."
        )


class VerificationError(LowtideError, RuntimeError):
    """The planned step differs from the plain one, or its real peak is too high.

    Args:
        what: The value that differs, e.g. "gradient of layers.3.weight", or "peak".
        difference: The first difference, with numbers.
        predicted_peak_bytes: The peak the plan promises, if it is known.
        measured_peak_bytes: The peak that was measured, if it was.
    """

    def __init__(
        self,
        what: str,
        difference: str,
        *,
        predicted_peak_bytes: int | None = None,
        measured_peak_bytes: int | None = None,
    ) -> None:
        self.what = what
        self.difference = difference
        self.predicted_peak_bytes = predicted_peak_bytes
        self.measured_peak_bytes = measured_peak_bytes
        peaks = [
            f"{name} {format_bytes(peak)}"
            for name, peak in (
                ("predicted", predicted_peak_bytes),
                ("measured", measured_peak_bytes),
            )
            if peak is not None
        ]
        shown = f" Peak: {', '.join(peaks)}." if peaks else ""
        super().__init__(
            f"verification failed at {what}: {_sentence(difference)}{shown} The plan "
            "is withdrawn. Run without lowtide (LOWTIDE_DISABLE=1) and report this "
            "with the saved step and plan."
        )


class SolverUnavailableError(LowtideError, ImportError):
    """A solver is not installed, or cannot be loaded in this process.

    Args:
        solver: The package that is missing.
        reason: What happened when it was imported.
        fix: What to do; by default, to install it.
    """

    def __init__(self, solver: str, reason: str, fix: str = "") -> None:
        self.solver = solver
        self.reason = reason
        fix = fix or (
            f"Install it with `pip install {solver}`, or choose a planner that needs "
            "no solver (`lowtide planners` lists them)"
        )
        super().__init__(
            f"solver {solver} cannot be used: {_sentence(reason)} {_sentence(fix)}"
        )


class UnsupportedTorchError(LowtideError, RuntimeError):
    """This torch does something lowtide was not tested with.

    Args:
        found: What is new or different.
        version: The torch version in use.
    """

    def __init__(self, found: str, version: str = "") -> None:
        self.found = found
        self.version = version
        running = f"torch {version}" if version else "this torch"
        super().__init__(
            f"lowtide cannot run on {running}: {_sentence(found)} Tested with "
            f"{TESTED_TORCH}: install such a version, or set LOWTIDE_DISABLE=1 to "
            "train without lowtide."
        )


class MissingPackageError(LowtideError, ImportError):
    """An optional package that is not installed.

    Args:
        package: The package.
        purpose: What it is needed for.
        install: The command that installs it.
    """

    def __init__(self, package: str, purpose: str, install: str) -> None:
        self.package = package
        super().__init__(
            f"{package} is not installed: {_sentence(purpose)} Install it with "
            f"`{install}`."
        )


class OutputError(LowtideError, OSError):
    """A file that cannot be written, or that exists and may not be replaced.

    Args:
        path: The file.
        reason: What stands in the way.
        fix: What to do.
    """

    def __init__(self, path: str, reason: str, fix: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"cannot write {path}: {_sentence(reason)} {_sentence(fix)}")


class TargetError(LowtideError, RuntimeError):
    """The user's own code, named on the command line, raised an error.

    Args:
        target: The file, module or function, as it was named.
        raised: The error it raised, e.g. "ZeroDivisionError: division by zero".
        location: The user's `file:line` where that happened.
        code: The line of code there.
    """

    def __init__(
        self, target: str, raised: str, *, location: str = "", code: str = ""
    ) -> None:
        self.target = target
        self.raised = raised
        self.location = location
        self.code = code
        where = f" At {location}" + (f": `{code}`." if code else ".")
        super().__init__(
            f"{target} raised {_sentence(raised)}{where if location else ''} Run it "
            "by itself in Python to see more, and mend it there."
        )


class LowtideWarning(UserWarning):
    """Something that does not stop lowtide, and that one should know."""


def _sentence(text: str) -> str:
    """Returns the text with a full stop, or nothing for nothing."""
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def _told_apart(first_bytes: int, second_bytes: int) -> tuple[str, str]:
    """Returns both sizes, with exact bytes where rounding would make them equal."""
    first, second = format_bytes(first_bytes), format_bytes(second_bytes)
    if first == second and first_bytes != second_bytes:
        return f"{first} ({first_bytes} bytes)", f"{second} ({second_bytes} bytes)"
    return first, second
