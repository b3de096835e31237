"""What all pictures share: the page's colors, figures, axes and files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lowtide.errors import MissingPackageError
from lowtide.reporting.html import asset
from lowtide.step.format import format_bytes, format_percent

# The page's style sheet has the only palette. Its first block is the light one.
COLORS: dict[str, str] = dict(
    re.findall(r"--([\w-]+): (#[0-9a-f]{6})", asset("style.css").partition("}")[0])
)
INK, SOFT, WARN = COLORS["ink"], COLORS["soft"], COLORS["warn"]
CYCLE = [COLORS[f"p{number}"] for number in range(8)]
_STYLE = {
    "font.size": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lowtide",
    # Names come from models: a dollar sign in them is a dollar sign.
    "text.parse_math": False,
}


def picture(
    draw: Callable[[Any, dict[str, Any]], None],
    data: dict[str, Any],
    form: str,
    *,
    width: float = 7.2,
    height: float = 3.6,
) -> bytes:
    """The file of what `draw` makes of a figure; equal data give equal bytes."""
    with _matplotlib().rc_context(_STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure, data)
        out = io.BytesIO()
        stamp = {"Date": None} if form == "svg" else {}
        figure.savefig(out, format=form, dpi=200, metadata=stamp)
    return out.getvalue()


def _matplotlib() -> ModuleType:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError(
            "matplotlib",
            "pictures of the charts are drawn with it",
            "pip install lowtide[plot]",
        ) from error
    return matplotlib


def byte_axis(axis: Any) -> None:
    """Ticks at round numbers of bytes; call it when the limits are set."""
    from matplotlib.ticker import MultipleLocator

    low, high = axis.get_view_interval()
    step = 1
    while step < (high - low) / 7:
        step *= 2
    axis.set_major_locator(MultipleLocator(step))
    shown_as(axis, format_bytes)


def percent_axis(axis: Any) -> None:
    """Ticks as percentages."""
    shown_as(axis, format_percent)


def shown_as(axis: Any, show: Callable[[float], str]) -> None:
    """Ticks as lowtide prints numbers, without a fraction that is zero."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def label(value: float, _: int) -> str:
        return re.sub(r"\.0+ ", " ", show(value))

    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())
