"""The report: where the bytes go, what the plan does, and that it is true.

`report` sorts what it is given, builds plain data once, and hands it to a renderer:
text for terminals, one HTML file for browsers and notebooks, pictures, exports. This
stage never imports torch.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.reporting.data import build, build_diff
from lowtide.reporting.diff import Diff
from lowtide.reporting.html import render_html, render_notebook
from lowtide.reporting.inputs import Reference, sort_things
from lowtide.reporting.text import render_text
from lowtide.step.files import write_whole

__all__ = ["Reference", "Report", "report"]


@dataclass(frozen=True)
class Report:
    """A report as plain data, with a way to show it for each place."""

    data: dict[str, Any]

    def __str__(self) -> str:
        out = io.StringIO()
        render_text(self.data, out, width=88, color=False)
        return out.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return f"Report({self.data['title']!r})"

    def to_dict(self) -> dict[str, Any]:
        """The data of the report: numbers, strings, lists and dicts only."""
        return self.data

    def to_html(self) -> str:
        """The whole page as a string."""
        return render_html(self.data)

    def _repr_html_(self) -> str:
        return render_notebook(self.data)

    def content(self, ending: str) -> str:
        """The report in the form that the name of a file asks for by its ending."""
        match ending.lower():
            case ".html" | ".htm":
                return self.to_html()
            case ".json":
                return json.dumps(self.data, indent=1)
            case ".txt":
                return f"lowtide report\n\n{self}\n"
            case _:
                raise InvalidArgumentError(
                    f"save(...{ending})",
                    f"{ending or 'no ending'!r} is not a form of the report",
                    "End the name in .html, .json or .txt; pictures are written by "
                    "save_plots",
                )

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the report as a file: `.html`, `.json` or `.txt` by its name.

        The file is complete or not there at all.

        Raises:
            OutputError: if the file exists and `force` is not set, or if writing
                fails.
        """
        return write_whole(path, self.content(Path(path).suffix), force=force)

    def save_plots(
        self, folder: str | Path, *, form: str = "svg", force: bool = False
    ) -> list[Path]:
        """Write each chart as a picture (`svg`, `png` or `pdf`); needs matplotlib."""
        from lowtide.reporting.pictures.charts import save_plots

        return save_plots(self.data, Path(folder), form=form, force=force)


def report(*things: Any, title: str = "", command: str = "") -> Report:
    """A report on everything given: a step, plans, frontiers, measurements, notes.

    Args:
        things: In any order: a `StepGraph`, `Plan`s (the first is the one shown),
            `Frontier`s, `Measurement`s (baseline first if there are two, or a dict with
            the keys "baseline" and "planned"), a `Verification`, batch rows,
            `Reference` points of other methods, strings as notes; or one `Diff`.
        title: The heading; the step's name by default.
        command: The command that makes this report again, shown in it.

    Examples:
        >>> import lowtide
        >>> step = lowtide.StepGraph.from_text('''
        ...     resident x 8
        ...     a = f(x) 16 bytes 1 s
        ...     turn(a) -> d 4 bytes
        ...     g = h(a, d) 16 bytes 1 s
        ...     -> g
        ... ''')
        >>> lowtide.report(step).to_dict()["views"][0]["peak"]["bytes"]
        44
    """
    if len(things) == 1 and isinstance(things[0], Diff):
        return Report(build_diff(things[0], title=title, command=command))
    return Report(build(sort_things(things), title=title, command=command))
