"""`lowtide fits`: whether a training step fits a device, answered by an exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide import planners
from lowtide.errors import BudgetTooSmallError
from lowtide.shell import options
from lowtide.shell.failures import BUDGET_TOO_SMALL
from lowtide.shell.frame import Frame
from lowtide.shell.progress import stage
from lowtide.shell.target import StepSource, Target
from lowtide.step.format import format_bytes, format_percent
from lowtide.step.units import to_bytes

# Bytes of state for each byte of parameters.
_STATE = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def fits(
    frame: Frame,
    source: Target,
    device: options.Device = "h100",
    optimizer: Annotated[
        str, typer.Option(metavar="|".join(_STATE), help="Whose state is in memory.")
    ] = "adamw",
    reserve: Annotated[
        str, options.option("Kept free for the driver and the allocator.", "SIZE")
    ] = "1GiB",
    time_limit: options.TimeLimit = 10.0,
) -> None:
    """Tell whether a training step fits a device, as it is or with a plan.

    Nothing is run or allocated. The exit code is 0 if it fits and 3 if it does not.
    """
    from lowtide.engine.costs.devices import find_device

    if optimizer not in _STATE:
        raise typer.BadParameter(f"{optimizer!r} is none of {', '.join(_STATE)}")
    found = find_device(device or "h100")
    memory = found.memory_bytes
    kept_free = to_bytes(options.read_budget(reserve), baseline_bytes=memory)
    given = (source.text, source.batch, source.model_options)
    step = StepSource(*given, how="estimate", device=device).step()
    parameters = sum(s.nbytes for s in step.storages if s.kind == "parameter")
    state = _STATE[optimizer] * parameters
    room = memory - kept_free - state
    needed = step.eager_peak_bytes
    plan = floor = None
    if needed > room:
        with stage("looking for a plan"):
            try:
                plan = planners.load("auto").plan(
                    step, max(1, room), time_limit=time_limit
                )
            except BudgetTooSmallError as error:
                floor = error.floor_bytes
    peak = floor or (plan.peak_bytes if plan else needed)
    frame.result(
        {
            "fits": floor is None,
            "device": found.name,
            "memory_bytes": memory,
            "reserve_bytes": kept_free,
            "optimizer_state_bytes": state,
            "needed_bytes": needed + state,
            "peak_bytes": peak + state,
            "overhead": plan.overhead if plan else 0.0,
        }
    )
    rows = [
        ("device", found.title, format_bytes(memory)),
        ("kept free", format_bytes(kept_free)),
        ("needs as it is", format_bytes(needed + state), f"{optimizer} state included"),
    ]
    if plan is not None:
        more = f"{format_percent(plan.overhead, signed=True)} time"
        rows.append(("needs with a plan", format_bytes(peak + state), more))
    elif floor is not None:
        rows.append(("lowest peak found", format_bytes(peak + state)))
    frame.pairs(rows)
    frame.assumed(step)
    frame.line("it does not fit" if floor else "it fits", "bold")
    if floor is not None:
        half = str(max(1, (source.batch or 2) // 2))
        frame.next("fits", source.text, "--batch", half, "--device", found.name)
        raise typer.Exit(BUDGET_TOO_SMALL)
    frame.next("run", "--budget", f"{(room + state) >> 20}MiB", "train.py")
