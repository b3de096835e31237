"""Batch sizes, other methods and published numbers beside lowtide's, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.reporting.pictures import style
from lowtide.reporting.pictures.style import picture
from lowtide.step.format import format_bytes, format_percent

_SIDES = (
    ("baseline", "without a plan", style.SOFT, "s--"),
    ("planned", "with a plan", style.CYCLE[0], "o-"),
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
            color=style.WARN,
            label="measured" if side == "planned" and real else None,
        )
    if budget_bytes:
        peaks.axhline(budget_bytes, color=style.WARN, linestyle=":", linewidth=1)
        text, end = f"budget {format_bytes(budget_bytes)}", (1.0, budget_bytes)
        at = {"xycoords": ("axes fraction", "data"), "ha": "right"}
        style.beside_point(peaks, text, end, (0, 2), color=style.WARN, **at)
    for axes, name in ((peaks, "peak of the step"), (speeds, "samples per second")):
        axes.set_xlabel("batch size")
        axes.set_ylabel(name)
        axes.set_ylim(0)
        axes.legend(frameon=False)
    style.byte_axis(peaks.yaxis)


def against_picture(data: dict[str, Any], form: str) -> bytes:
    """Extra time against the peak that the system saw, one mark for each method."""
    return picture(_draw_against, data, form, height=4.4)


# The color of each family of methods: by how its name begins.
_FAMILIES = {
    "lowtide": style.CYCLE[0],
    "blocks": style.CYCLE[1],
    "sequential": style.CYCLE[1],
    "selective": style.CYCLE[4],
    "torch_budget": style.CYCLE[2],
    "inductor": style.CYCLE[2],
}


def _draw_against(figure: Any, data: dict[str, Any]) -> None:
    axes = figure.add_subplot()
    base = data["rows"][0]
    labels: list[tuple[str, tuple[float, float], str]] = []
    ours: list[tuple[float, float]] = []
    for row in data["rows"]:
        # One row is made for another peak than the one that is drawn.
        is_other_peak = row["name"] == "lowtide_activations"
        if row["problem"] or not row["rss_peak_bytes"] or is_other_peak:
            continue
        share = row["rss_peak_bytes"] / max(1, base["rss_peak_bytes"])
        place = (share, row["time_ratio"] - 1)
        family = next((f for f in _FAMILIES if row["name"].startswith(f)), "")
        color = _FAMILIES.get(family, style.INK)
        if family == "lowtide":
            ours.append(place)
        else:
            look = "full" if row["is_exact"] else "none"
            axes.plot(*place, "s", color=color, fillstyle=look, markersize=6)
            labels.append((row["label"], place, color))
    if ours:
        line = list(zip(*sorted(ours), strict=True))
        axes.plot(*line, "o-", color=_FAMILIES["lowtide"], linewidth=1.4, markersize=5)
        labels.insert(0, ("lowtide", min(ours), _FAMILIES["lowtide"]))
    name, *options = data["target"]
    sizes = " ".join(options).replace("--batch", "batch").replace(" --option ", ", ")
    model = ", ".join(filter(None, (name, sizes.removeprefix("--option "))))
    axes.set_title(f"{model}: what each method pays in time for its peak", pad=16)
    exact = "hollow: other numbers than plain PyTorch's"
    at = {"xycoords": "axes fraction", "ha": "left"}
    style.beside_point(axes, exact, (0.0, 1.0), (0, 4), **at)
    axes.set_xlabel("peak of the step, as a share of eager's")
    axes.set_ylabel("extra time")
    axes.margins(0.08)
    style.percent_axis(axes.xaxis)
    style.shown_as(axes.yaxis, lambda value: format_percent(value, signed=True))
    style.label_points(figure, axes, labels)
