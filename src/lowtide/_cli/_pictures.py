"""Pictures that commands write, in the look of the report's."""

from __future__ import annotations

import io
from typing import Any

from lowtide._format import format_bytes
from lowtide._report._plots import CYCLE, SOFT, STYLE, WARN, _byte_axis, _matplotlib

_SIDES = (
    ("baseline", "as it is", SOFT, "s--"),
    ("planned", "with a plan", CYCLE[0], "o-"),
)


def batch_picture(data: dict[str, Any], form: str) -> bytes:
    """Peak and throughput against batch size, side by side."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        peaks, speeds = figure.subplots(1, 2)
        _peaks(peaks, data)
        _speeds(speeds, data)
        return saved(figure, form)


def saved(figure: Any, form: str) -> bytes:
    """The figure as a file; equal figures give equal bytes."""
    out = io.BytesIO()
    stamp = {"Date": None} if form == "svg" else {}
    with _matplotlib().rc_context(STYLE):
        figure.savefig(out, format=form, dpi=200, metadata=stamp)
    return out.getvalue()


def _peaks(axes: Any, data: dict[str, Any]) -> None:
    for side, label, color, look in _SIDES:
        found = [r for r in data["rows"] if r[f"{side}_peak_bytes"] is not None]
        sizes = [r["batch"] for r in found]
        peaks = [r[f"{side}_peak_bytes"] for r in found]
        axes.plot(sizes, peaks, look, color=color, markersize=4, label=label)
        real = [r for r in data["rows"] if r[f"measured_{side}"]]
        axes.plot(
            [r["batch"] for r in real],
            [r[f"measured_{side}"]["peak_bytes"] for r in real],
            "x",
            color=WARN,
            label="measured" if side == "planned" and real else None,
        )
    budget = data["budget_bytes"]
    axes.axhline(budget, color=WARN, linestyle=":", linewidth=1)
    axes.annotate(
        f"budget {format_bytes(budget)}",
        (1.0, budget),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color=WARN,
        fontsize=8,
    )
    axes.set_xlabel("batch size")
    axes.set_ylabel("peak of the step")
    axes.set_ylim(0)
    _byte_axis(axes.yaxis)
    axes.legend(frameon=False)


def _speeds(axes: Any, data: dict[str, Any]) -> None:
    for side, label, color, look in _SIDES:
        key = f"{side}_samples_per_second"
        found = [r for r in data["rows"] if r[key] is not None]
        axes.plot(
            [r["batch"] for r in found],
            [r[key] for r in found],
            look,
            color=color,
            markersize=4,
            label=label,
        )
    axes.set_xlabel("batch size")
    axes.set_ylabel("samples per second")
    axes.set_ylim(0)
    axes.legend(frameon=False)
