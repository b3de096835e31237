"""`lowtide profile`: what a training step needs, before anything is planned."""

from __future__ import annotations

from lowtide._cli import _files
from lowtide._cli._options import (
    AsJson,
    Batch,
    Device,
    Force,
    How,
    ModelOptions,
    Output,
    TargetText,
)
from lowtide._cli._page import Page
from lowtide._cli._steps import show_report
from lowtide._cli._target import read_target, step_of


def profile(
    target: TargetText,
    output: Output = None,
    batch: Batch = None,
    option: ModelOptions = None,
    how: How = "measure",
    device: Device = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show what a training step needs: bytes, time, and what holds them."""
    page = Page(as_json=as_json)
    asked = read_target(target, batch, option)
    _files.refuse_early(output, force=force)
    step = step_of(asked, how=how, device=device)
    if output is not None:
        _files.write_compact(output, step.to_dict(), force=force)
    page.result(step.to_dict())
    show_report(page, step)
    page.line()
    if output is not None:
        page.pairs([("saved", str(output))])
    saved = asked.words if output is None else (str(output),)
    page.next("lowtide", "plan", *saved, "--budget", "60%")
