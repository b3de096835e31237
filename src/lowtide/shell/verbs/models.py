"""`lowtide models`: what can be named as TARGET without writing code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from lowtide.models import Description, available, describe
from lowtide.shell import complete
from lowtide.shell.frame import Frame
from lowtide.shell.options import argument


def models(
    frame: Frame,
    name: Annotated[
        str | None, argument("A built-in model.", complete.models, "[NAME]")
    ] = None,
) -> None:
    """List the built-in models, or the options of one."""
    if name is not None:
        _one(frame, describe(name))
        return
    known = [describe(each) for each in available()]
    frame.result([_data(each) for each in known])
    frame.table(
        ("model", "parameters", "<from", "<what it is"),
        [(d.name, _count(d.num_parameters), d.library, d.summary) for d in known],
    )
    frame.next("models", "gpt2")


def _one(frame: Frame, description: Description) -> None:
    frame.result(_data(description))
    frame.line(f"{description.name}: {description.summary}", "bold")
    frame.line()
    frame.table(
        ("option", "<default", "<what it is"),
        [
            (o.name, "" if o.default is None else str(o.default).lower(), o.help)
            for o in description.options
        ],
    )
    frame.next("profile", description.name, "--batch", "2")


def _data(description: Description) -> dict[str, Any]:
    data = asdict(description)
    del data["maker"]
    for option in data["options"]:
        option["kind"] = option["kind"].__name__
    return data


def _count(number: int) -> str:
    for scale, unit in ((10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= scale:
            return f"{number / scale:.1f}{unit}"
    return str(number)
