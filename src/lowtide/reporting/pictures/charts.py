"""The charts of reports and of comparisons as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.reporting.pictures import style
from lowtide.reporting.pictures.style import picture
from lowtide.step.files import write_whole
from lowtide.step.format import format_bytes, format_percent, format_seconds
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
    style.shown_as(axes.yaxis, format_percent)
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
    style.shown_as(axes.yaxis, format_percent)
    axes.legend(frameon=False)


_SIDES = (
    ("baseline", "without a plan", style.SOFT, "s--"),
    ("planned", "with a plan", style.CYCLE[0], "o-"),
)


def batch_picture(data: dict[str, Any], form: str) -> bytes:
    """Peak and throughput against batch size, side by side."""
    return picture(
        lambda figure, _: _batch(figure, data["rows"], data["budget_bytes"]),
        data,
        form,
        width=9.0,
    )


def _batch(figure: Any, rows: Sequence[dict[str, Any]], budget_bytes: int) -> None:
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
    style.shown_as(axes.xaxis, format_percent)
    style.shown_as(axes.yaxis, lambda value: format_percent(value, signed=True))
    style.label_points(figure, axes, labels)


# By name: the section of the report that has its data, and what draws it.
CHARTS: dict[str, tuple[str, Callable[[Any, dict[str, Any]], None]]] = {
    "tide": ("tide", _tide),
    "frontier": ("frontier", _frontier),
    "lifetimes": ("lifetimes", _lifetimes),
    "batch": ("batch", lambda f, d: _batch(f, d["batch"], d["batch_budget_bytes"])),
    "search": ("search", _search),
}
