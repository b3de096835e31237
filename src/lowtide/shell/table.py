"""`lowtide bench --table feng`: the published models at the published cut.

Predicted for the class of device of the publication at the published batch and, if
asked, measured on this machine at a smaller one.
"""

from __future__ import annotations

from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.models import PUBLISHED, Published
from lowtide.shell.against import with_peaks
from lowtide.shell.page import Page, user_prints_elsewhere
from lowtide.shell.progress import note, stage
from lowtide.shell.target import Target, build, load_api, profile
from lowtide.step.format import format_percent

# The published batches need gigabytes of activations; a sixteenth fits most machines.
_SMALLER = 16


def run_table(
    name: str,
    only: str | None,
    planner: str,
    time_limit: float,
    batch: int | None,
    steps: int,
    measure: bool,
) -> dict[str, Any]:
    """Every row of the table, as plain data. A given batch is that of the real runs."""
    if name != "feng":
        raise InvalidArgumentError(
            f"--table {name}", "there is no such table", "Write --table feng"
        )
    chosen = list(PUBLISHED) if only is None else [m.strip() for m in only.split(",")]
    for model in chosen:
        if model not in PUBLISHED:
            raise InvalidArgumentError(
                f"--models {model}",
                "the table has no such model",
                f"Use some of: {', '.join(PUBLISHED)}",
            )
    if batch is not None and not measure:
        raise InvalidArgumentError(
            "--table with --batch",
            "predictions are for the published batch",
            "Add --measure to run the models here at that batch",
        )
    load_api()
    from lowtide.engine.bench.feng import DEVICE, feng_row

    rows: list[dict[str, Any]] = []
    for place, model in enumerate(chosen, 1):
        note(f"{model} ({place} of {len(chosen)})")
        with stage(f"capturing and planning {model}"):
            row = feng_row(PUBLISHED[model], planner=planner, time_limit=time_limit)
        measured = {}
        if measure:
            measured = _measured(PUBLISHED[model], planner, time_limit, batch, steps)
        rows.append({**row.to_dict(), **measured})
    return {
        "lowtide": "feng",
        "device": DEVICE.rpartition(":")[2],
        "planner": planner,
        "rows": rows,
    }


def _measured(
    published: Published,
    planner: str,
    time_limit: float,
    batch: int | None,
    steps: int,
) -> dict[str, Any]:
    """The same model run here: cut and extra time next to eager, in turns."""
    from lowtide.engine.bench.against import Row, compare_methods
    from lowtide.engine.bench.feng import activation_peak_bytes, plan_for_cut
    from lowtide.engine.bench.methods import methods_named, planned_method

    size = batch or max(2, published.batch // _SMALLER)
    options = {"image": str(published.image), "loss": "sum"}
    asked = Target(published.name, "model", size, options)
    example = build(asked)
    step = profile(asked, example, "measure", None)
    with stage(f"planning {published.name}"):
        plan = plan_for_cut(
            step,
            activation_peak_bytes(step),
            published.cut_percent / 100,
            planner=planner,
            time_limit=time_limit,
        )
    methods = [*methods_named("eager"), planned_method("lowtide", "lowtide", plan)]
    eager, ours = with_peaks(
        [(Row("eager", "eager"), None), (Row("lowtide", "lowtide"), plan)], asked, 1
    )
    with stage("running both in turns"), user_prints_elsewhere():
        rows = compare_methods(
            methods, example.model, example.batch, example.loss, steps=steps
        )
    eager_bytes, our_bytes = eager.activation_peak_bytes, ours.activation_peak_bytes
    return {
        "measured_batch": size,
        "measured_cut": 1 - our_bytes / eager_bytes if eager_bytes else None,
        "measured_overhead": rows[1].time_ratio - 1,
        "measured_predicted_overhead": plan.overhead,
        "measured_eager_bytes": eager_bytes,
        "measured_planned_bytes": our_bytes,
        "is_exact": rows[1].is_exact,
    }


def show_table(page: Page, data: dict[str, Any]) -> None:
    """The table, and how many rows are met."""
    rows = data["rows"]
    is_measured = any("measured_cut" in row for row in rows)
    page.line(f"Published cuts, predicted on {data['device']}", "bold")
    heads = ("model", "batch", "published", "time", "lowtide", "time", "share")
    more = ("batch", "measured", "time", "<numbers") if is_measured else ()
    page.table((*heads, *more), [_cells(row) for row in rows])
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    page.line()
    page.line(
        f"At the published cut: at most the published extra time on "
        f"{sum(r <= 1 for r in ratios)} of {len(rows)}, at most half of it on "
        f"{sum(r <= 0.5 for r in ratios)}."
    )
    if is_measured:
        page.line(
            "Measured: cut of the allocated activations and extra time of the same "
            "models on this machine at the smaller batch, in turns with eager."
        )
    page.line("Source: Feng and Huang, CVPR 2021, table of the authors' repository.")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    cells = (
        row["name"],
        str(row["batch"]),
        format_percent(-row["published_cut"]),
        format_percent(row["published_overhead"], signed=True),
        format_percent(-row["cut"]),
        format_percent(row["overhead"], signed=True),
        f"{row['ratio']:.2f}" if row["is_reached"] else "least",
    )
    if "measured_cut" not in row:
        return cells
    cut = row["measured_cut"]
    return (
        *cells,
        str(row["measured_batch"]),
        "-" if cut is None else format_percent(-cut),
        format_percent(row["measured_overhead"], signed=True),
        "equal" if row["is_exact"] else "DIFFERENT",
    )
