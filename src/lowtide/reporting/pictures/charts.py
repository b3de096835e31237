"""The report's charts as pictures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.reporting.data import build
from lowtide.reporting.inputs import sort_things
from lowtide.reporting.pictures import style
from lowtide.reporting.pictures.comparisons import draw_batch
from lowtide.reporting.pictures.style import picture
from lowtide.step.files import write_whole
from lowtide.step.format import format_bytes, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import KIND_NAMES, shortened

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
        write_whole(
            folder / f"{name}.{form}", chart_picture(name, data, form), force=force
        )
        for name, (section, _) in CHARTS.items()
        if data["views"][0].get(section) or data.get(section)
    ]


def chart_picture(name: str, data: dict[str, Any], form: str) -> bytes:
    """One chart of a report; `CHARTS` has the names."""
    height = 5.4 if name == "lifetimes" else 3.6
    return picture(CHARTS[name][1], data, form, height=height)


def profile_picture(step: StepGraph, form: str) -> bytes:
    """Live bytes over the unplanned step."""
    return picture(_tide, build(sort_things((step,))), form, width=9.6, height=4.8)


def _tide(figure: Any, data: dict[str, Any]) -> None:
    axes = figure.add_subplot()
    shown = data["views"][0]
    if not shown["tide"]:
        axes.set_title(f"{data['title']}: nothing runs")
        return
    tide = shown["tide"]
    # Without times every op is as wide as any other.
    axis, start, end = "start_seconds", "start_seconds", tide["seconds"]
    if not end:
        axis, start, end = "run", "first_run", tide["num_runs"]
    kinds = tide["by_kind"]
    axes.stackplot(
        [*tide[axis], end],
        [[*column, column[-1]] for column in kinds.values()],
        labels=[KIND_NAMES[kind] for kind in kinds],
        colors=[style.COLORS[kind] for kind in kinds],
        step="post",
        linewidth=0,
    )
    for curve, look in (
        (tide["outline"], {"color": style.SOFT, "linestyle": "--", "linewidth": 1}),
        (shown["measured"], {"color": style.INK, "linewidth": 1}),
    ):
        if curve:
            points = (curve[axis], curve["live_bytes"])
            axes.step(*points, where="post", label=curve["label"], **look)
    if tide["budget_bytes"]:
        words = f"budget {format_bytes(tide['budget_bytes'])}"
        look = {"color": style.WARN, "linestyle": ":", "linewidth": 1, "label": words}
        axes.axhline(tide["budget_bytes"], **look)
    peak = (tide[axis][tide["run"].index(tide["peak_run"])], tide["peak_bytes"])
    words = f"peak {format_bytes(tide['peak_bytes'])}"
    axes.plot(*peak, "o", color=style.WARN, markersize=4, label=words, clip_on=False)
    for band in tide["bands"]:
        axes.axvline(band[start], color=style.SOFT, linewidth=0.6)
        top, place = ("data", "axes fraction"), (band[start], 1.0)
        style.beside_point(axes, band["phase"], place, (3, 3), xycoords=top)
    axes.set_xlim(0, end)
    axes.set_ylim(0)
    if axis == "run":
        axes.set_xlabel("runs of ops")
    else:
        axes.set_xlabel("predicted time")
        style.shown_as(axes.xaxis, format_seconds)
    axes.set_title(data["title"], pad=16)
    style.byte_axis(axes.yaxis)
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
                color=style.CYCLE[number % 8],
                **look,
            )
    for reference in frontier["references"]:
        place = (reference["peak_bytes"], reference["overhead"])
        axes.plot(*place, "D", color=style.SOFT, markerfacecolor="none", markersize=5)
    eager = frontier["eager_peak_bytes"]
    axes.axvline(eager, color=style.CYCLE[4], linestyle="--", linewidth=1)
    left = axes.get_xlim()[0]
    for here, following in pairwise([*frontier["bound"], {"budget_bytes": 0}]):
        span = [max(left, following["budget_bytes"]), here["budget_bytes"]]
        shade = {"color": style.SOFT, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(span, here["overhead"], **shade)
    axes.set_title(f"{data['title']}: extra time against peak")
    axes.set_xlabel("peak")
    axes.set_ylabel("extra time")
    style.byte_axis(axes.xaxis)
    style.percent_axis(axes.yaxis)
    axes.legend(frameon=False, fontsize=8)
    top = axes.get_ylim()[1]
    labels = [("eager", (eager, top), style.CYCLE[4])]
    for r in frontier["references"]:
        labels.append((r["name"], (r["peak_bytes"], r["overhead"]), style.SOFT))
    style.label_points(figure, axes, labels)


def _lifetimes(figure: Any, data: dict[str, Any]) -> None:
    axes, rows = figure.add_subplot(), data["views"][0]["lifetimes"][:40]
    bars = [(y, row, bar) for y, row in enumerate(rows) for bar in row["bars"]]
    kinds = [
        "recomputed" if bar["again"] and row["kind"] == "activation" else row["kind"]
        for _, row, bar in bars
    ]
    axes.hlines(
        [y for y, _, _ in bars],
        [bar["first_run"] for _, _, bar in bars],
        [bar["end_run"] for _, _, bar in bars],
        colors=[style.COLORS[kind] for kind in kinds],
        linewidths=[
            max(0.6, 6.5 * row["bytes"] / rows[0]["bytes"]) for _, row, _ in bars
        ],
        capstyle="butt",
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    names = [shortened(row["name"], 40) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=6)
    axes.set_title(f"{data['title']}: the largest storages, as high as their bytes")
    axes.set_xlabel("runs of ops")


def _search(figure: Any, data: dict[str, Any]) -> None:
    axes, search = figure.add_subplot(), data["views"][0]["search"]
    axes.step(
        [*(p["search_seconds"] for p in search["incumbent"]), search["search_seconds"]],
        [*(p["overhead"] for p in search["incumbent"]), search["overhead"]],
        where="post",
        color=style.CYCLE[0],
        label="best plan",
    )
    axes.axhspan(
        min(0.0, search["bound_overhead"]),
        search["bound_overhead"],
        color=style.SOFT,
        alpha=0.15,
        label=f"out of reach, after {format_seconds(search['search_seconds'])}",
    )
    axes.set_title(f"{data['title']}: the search for a plan")
    axes.set_xlabel("seconds of search")
    axes.set_ylabel("extra time")
    style.percent_axis(axes.yaxis)
    axes.legend(frameon=False)


# By name: the section of the report that has its data, and what draws it.
CHARTS: dict[str, tuple[str, Callable[[Any, dict[str, Any]], None]]] = {
    "tide": ("tide", _tide),
    "frontier": ("frontier", _frontier),
    "lifetimes": ("lifetimes", _lifetimes),
    "batch": ("batch", lambda f, d: draw_batch(f, d["batch"], d["batch_budget_bytes"])),
    "search": ("search", _search),
}
