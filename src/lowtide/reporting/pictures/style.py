"""What all pictures share: the page's colors, figures, axes and files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lowtide.errors import MissingPackageError
from lowtide.reporting.html import asset
from lowtide.step.format import format_bytes

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

# Marks the files as ours, so that a later run may replace them.
_STAMPS: dict[str, dict[str, str | None]] = {
    "png": {"Software": "lowtide"},
    "svg": {"Creator": "lowtide", "Date": None},
    "pdf": {"Creator": "lowtide", "CreationDate": None},
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
        figure.savefig(out, format=form, dpi=200, metadata=_STAMPS[form])
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


def shown_as(axis: Any, show: Callable[[float], str]) -> None:
    """Ticks as lowtide prints numbers, without a fraction that is zero."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def label(value: float, _: int) -> str:
        return re.sub(r"\.0+ ", " ", show(value))

    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())


def beside_point(
    axes: Any,
    text: str,
    place: tuple[float, float],
    offset: tuple[int, int],
    **look: Any,
) -> Any:
    """A small label at an offset from a point."""
    look = {"xytext": offset, "textcoords": "offset points", "color": SOFT, **look}
    return axes.annotate(text, place, fontsize=8, **look)


# Where a label may stand beside its point: how far in points, and which end is there.
_SIDES = [
    ((8, 0), "left"),
    ((-8, 0), "right"),
    *(
        ((x, y), end)
        for y in (9, -9, 18, -18)
        for x, end in ((4, "left"), (-4, "right"))
    ),
    *(((0, y), "center") for y in (11, -11)),
]


def label_points(
    figure: Any, axes: Any, labels: list[tuple[str, tuple[float, float], str]]
) -> None:
    """Name points beside them, each on the first side where it covers nothing.

    Call it last: where the axes are is known when everything else is drawn.
    """
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    marks = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for xy in marks for x, y in xy]
    room = axes.get_window_extent()
    for text, place, color in labels:
        for offset, end in _SIDES:
            look = {"ha": end, "va": "center", "color": color}
            shown = beside_point(axes, text, place, offset, **look)
            box = shown.get_window_extent()
            is_inside = room.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            if is_inside and not any(box.overlaps(other) for other in taken):
                break
            shown.remove()
        else:
            shown = beside_point(axes, text, place, (8, 0), color=color, va="center")
        taken.append(shown.get_window_extent())
