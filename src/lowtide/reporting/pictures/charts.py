"""The report's charts as pictures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.reporting.data import build
from lowtide.reporting.inputs import sort_things
from lowtide.reporting.pictures.comparisons import draw_batch
from lowtide.reporting.pictures.style import (
    COLORS,
    CYCLE,
    INK,
    SOFT,
    WARN,
    byte_axis,
    percent_axis,
    picture,
    shown_as,
)
from lowtide.step.files import write_whole
from lowtide.step.format import format_bytes, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import KIND_NAMES

MARKS = "os^D"
FORMATS = ("svg", "png", "pdf")


def save_plots(
    data: dict[str, Any], folder: Path, *, form: str = "svg", force: bool = False
) -> list[Path]:
    """Write every chart the report has, as `folder/NAME.FORM`; returns the files."""
    if form not in FORMATS:
        raise InvalidArgumentError(
            f"form={form!r}",
            "there is no such form",
            f"Use one of: {', '.join(FORMATS)}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_whole(folder / f"{name}.{form}", picture(draw, data, form), force=force)
        for name, (section, draw) in CHARTS.items()
        if data[section]
    ]


def profile_picture(step: StepGraph, form: str) -> bytes:
    """Live bytes over the unplanned step."""
    return picture(_tide, build(sort_things((step,))), form, width=9.6, height=4.8)


def _tide(figure: Any, data: dict[str, Any]) -> None:
    axes = figure.add_subplot()
    if not data["tides"]:
        axes.set_title(f"{data['title']}: nothing runs")
        return
    tide = data["tides"][0]
    # Without times every op is as wide as any other.
    axis, start, end = "start_seconds", "start_seconds", tide["seconds"]
    if not end:
        axis, start, end = "run", "first_run", tide["num_runs"]
    floor = [0] * len(tide["run"])
    for kind, column in tide["by_kind"].items():
        top = [a + b for a, b in zip(floor, column, strict=True)]
        axes.fill_between(
            [*tide[axis], end],
            [*floor, floor[-1]],
            [*top, top[-1]],
            step="post",
            color=COLORS[kind],
            label=KIND_NAMES[kind],
            linewidth=0,
        )
        floor = top
    for curve, look in (
        (tide["outline"], {"color": SOFT, "linestyle": "--", "linewidth": 1}),
        (data["measured"], {"color": INK, "linewidth": 1}),
    ):
        if curve:
            points = (curve[axis], curve["live_bytes"])
            axes.step(*points, where="post", label=curve["label"], **look)
    if tide["budget_bytes"] and not data["is_profile"]:
        words = f"budget {format_bytes(tide['budget_bytes'])}"
        look = {"color": WARN, "linestyle": ":", "linewidth": 1, "label": words}
        axes.axhline(tide["budget_bytes"], **look)
    peak = (tide[axis][tide["run"].index(tide["peak_run"])], tide["peak_bytes"])
    words = f"peak {format_bytes(tide['peak_bytes'])}"
    axes.plot(*peak, "o", color=WARN, markersize=4, label=words, clip_on=False)
    for band in tide["bands"]:
        axes.axvline(band[start], color=SOFT, linewidth=0.6)
        axes.annotate(
            band["phase"],
            (band[start], 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=8,
            color=SOFT,
        )
    axes.set_xlim(0, end)
    axes.set_ylim(0)
    if axis == "run":
        axes.set_xlabel("runs of ops")
    else:
        axes.set_xlabel("predicted time")
        shown_as(axes.xaxis, format_seconds)
    axes.set_title(data["title"], pad=16)
    byte_axis(axes.yaxis)
    handles, labels = axes.get_legend_handles_labels()
    # In the order of the picture, beside it: inside it would hide something.
    beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "fontsize": 8}
    axes.legend(handles[::-1], labels[::-1], frameon=False, **beside)


def _frontier(figure: Any, data: dict[str, Any]) -> None:
    axes, frontier = figure.add_subplot(), data["frontier"]
    planners = list(dict.fromkeys(p["planner"] for p in frontier["points"]))
    for number, planner in enumerate(planners):
        found = [p for p in frontier["points"] if p["planner"] == planner]
        for points, look in (
            (found, {"marker": MARKS[number % 4], "linestyle": "", "label": planner}),
            ([p for p in found if p["is_best"]], {"linewidth": 1}),
        ):
            axes.plot(
                [p["peak_bytes"] for p in points],
                [p["overhead"] for p in points],
                markersize=4.5,
                color=CYCLE[number % 8],
                **look,
            )
    for reference in frontier["references"]:
        place = (reference["peak_bytes"], reference["overhead"])
        axes.plot(*place, "D", color=SOFT, markerfacecolor="none", markersize=5)
        axes.annotate(
            reference["name"],
            place,
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
            color=SOFT,
        )
    left = axes.get_xlim()[0]
    for here, following in pairwise([*frontier["bound"], {"budget_bytes": 0}]):
        span = [max(left, following["budget_bytes"]), here["budget_bytes"]]
        shade = {"color": SOFT, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(span, here["overhead"], **shade)
    axes.set_xlabel("peak")
    axes.set_ylabel("extra time")
    byte_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.legend(frameon=False, fontsize=8)


def _lifetimes(figure: Any, data: dict[str, Any]) -> None:
    axes, rows = figure.add_subplot(), data["lifetimes"]
    bars = [(y, row, bar) for y, row in enumerate(rows) for bar in row["bars"]]
    kinds = [
        "recomputed" if bar["again"] and row["kind"] == "activation" else row["kind"]
        for _, row, bar in bars
    ]
    axes.hlines(
        [y for y, _, _ in bars],
        [bar["first_run"] for _, _, bar in bars],
        [bar["end_run"] for _, _, bar in bars],
        colors=[COLORS[kind] for kind in kinds],
        linewidth=min(8.0, 180 / len(rows)),
        capstyle="butt",
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("runs of ops")
    axes.set_ylabel("largest storages")


def _search(figure: Any, data: dict[str, Any]) -> None:
    axes, search = figure.add_subplot(), data["search"]
    axes.step(
        [*(p["search_seconds"] for p in search["incumbent"]), search["search_seconds"]],
        [*(p["overhead"] for p in search["incumbent"]), search["overhead"]],
        where="post",
        color=CYCLE[0],
        label="best plan",
    )
    axes.axhspan(
        min(0.0, search["bound_overhead"]),
        search["bound_overhead"],
        color=SOFT,
        alpha=0.15,
        label=f"out of reach, after {format_seconds(search['search_seconds'])}",
    )
    axes.set_xlabel("seconds of search")
    axes.set_ylabel("extra time")
    percent_axis(axes.yaxis)
    axes.legend(frameon=False)


def _batch(figure: Any, data: dict[str, Any]) -> None:
    draw_batch(figure, data["batch"])


# By name: the section of the report that has its data, and what draws it.
CHARTS: dict[str, tuple[str, Callable[[Any, dict[str, Any]], None]]] = {
    "tide": ("tides", _tide),
    "frontier": ("frontier", _frontier),
    "lifetimes": ("lifetimes", _lifetimes),
    "batch": ("batch", _batch),
    "search": ("search", _search),
}
