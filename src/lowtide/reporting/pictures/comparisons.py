"""Batch sizes, other methods and published numbers beside lowtide's, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.reporting.pictures.style import (
    CYCLE,
    SOFT,
    WARN,
    byte_axis,
    percent_axis,
    picture,
    shown_as,
)
from lowtide.step.format import format_bytes, format_percent

_SIDES = (
    ("baseline", "as it is", SOFT, "s--"),
    ("planned", "with a plan", CYCLE[0], "o-"),
)


def batch_picture(data: dict[str, Any], form: str) -> bytes:
    """Peak and throughput against batch size, side by side."""
    return picture(
        lambda figure, _: draw_batch(figure, data["rows"], data["budget_bytes"]),
        data,
        form,
        width=9.0,
    )


def draw_batch(
    figure: Any, rows: Sequence[dict[str, Any]], budget_bytes: int = 0
) -> None:
    """Peaks and samples per second of batch rows; None where the step did not fit."""
    peaks, speeds = figure.subplots(1, 2)
    for side, label, color, look in _SIDES:
        for axes, key in (
            (peaks, f"{side}_peak_bytes"),
            (speeds, f"{side}_samples_per_second"),
        ):
            found = [row for row in rows if row[key] is not None]
            points = ([row["batch"] for row in found], [row[key] for row in found])
            axes.plot(*points, look, color=color, markersize=4, label=label)
        real = [row for row in rows if row.get(f"measured_{side}")]
        peaks.plot(
            [row["batch"] for row in real],
            [row[f"measured_{side}"]["peak_bytes"] for row in real],
            "x",
            color=WARN,
            label="measured" if side == "planned" and real else None,
        )
    if budget_bytes:
        peaks.axhline(budget_bytes, color=WARN, linestyle=":", linewidth=1)
        peaks.annotate(
            f"budget {format_bytes(budget_bytes)}",
            (1.0, budget_bytes),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=WARN,
            fontsize=8,
        )
    for axes, name in ((peaks, "peak of the step"), (speeds, "samples per second")):
        axes.set_xlabel("batch size")
        axes.set_ylabel(name)
        axes.set_ylim(0)
        axes.legend(frameon=False)
    byte_axis(peaks.yaxis)


def against_picture(data: dict[str, Any], form: str) -> bytes:
    """Extra time against the peak that the system saw, one mark for each method."""
    return picture(_draw_against, data, form, height=3.8)


def _draw_against(figure: Any, data: dict[str, Any]) -> None:
    axes = figure.add_subplot()
    base = data["rows"][0]
    places = {
        row["name"]: (
            row["rss_peak_bytes"] / max(1, base["rss_peak_bytes"]),
            row["time_ratio"] - 1,
        )
        for row in data["rows"]
        if not row["problem"]
        and row["rss_peak_bytes"]
        # Made for another peak than the one that is drawn.
        and row["name"] != "lowtide_activations"
    }
    labels: list[tuple[float, float, str]] = []
    for row in data["rows"]:
        if row["name"] not in places:
            continue
        is_ours = row["name"].startswith("lowtide")
        x, y = places[row["name"]]
        if row["matches"] in places:
            # Made for that method's peak: the line says so, without a name.
            other_x, other_y = places[row["matches"]]
            axes.plot([x, other_x], [y, other_y], color=SOFT, linewidth=0.6)
        axes.plot(
            x,
            y,
            "o" if is_ours else "s",
            color=CYCLE[0] if is_ours else SOFT,
            fillstyle="full" if row["is_exact"] else "none",
        )
        if not row["matches"]:
            labels.append((x, y, row["label"]))
    _label(axes, labels)
    axes.set_title(
        "Filled: the numbers of eager; hollow: others. Round: lowtide, a line to "
        "the method whose peak it was given.",
        fontsize=7,
    )
    axes.set_xlabel("peak of the step, as a share of eager's")
    axes.set_ylabel("extra time")
    percent_axis(axes.xaxis)
    shown_as(axes.yaxis, lambda value: format_percent(value, signed=True))


def _label(axes: Any, labels: list[tuple[float, float, str]]) -> None:
    """A letter at each mark, and what the letters stand for beside the axes."""
    for place, (x, y, text) in enumerate(sorted(labels)):
        letter = chr(ord("a") + place)
        axes.annotate(
            letter, (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8
        )
        axes.text(
            1.03,
            0.97 - 0.07 * place,
            f"{letter}  {text}",
            transform=axes.transAxes,
            fontsize=8,
            verticalalignment="top",
        )
