"""`lowtide models`: what can be named as TARGET without writing code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lowtide.models import Description, available, describe
from lowtide.shell.options import AsJson, ModelName
from lowtide.shell.page import Page


def models(name: ModelName = None, as_json: AsJson = False) -> None:
    """List the built-in models, or the options of one."""
    page = Page(as_json=as_json)
    if name is not None:
        _one(page, describe(name))
        return
    found = [describe(each) for each in available()]
    page.result([_data(each) for each in found])
    page.table(
        ("model", "parameters", "<from", "<what it is"),
        [(d.name, _count(d.num_parameters), d.library, d.summary) for d in found],
    )
    page.line()
    page.next("lowtide", "models", "gpt2")


def _one(page: Page, description: Description) -> None:
    page.result(_data(description))
    page.line(f"{description.name}: {description.summary}", "bold")
    page.line()
    page.table(
        ("option", "<default", "<what it is"),
        [
            (o.name, "" if o.default is None else str(o.default).lower(), o.help)
            for o in description.options
        ],
    )
    page.line()
    page.next("lowtide", "profile", description.name, "--batch", "2")


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
