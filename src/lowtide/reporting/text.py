"""The report as text: cards, the tide as a line of blocks, two short tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from lowtide.reporting.sheet import Sheet, console_for
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.names import KIND_NAMES, printable, shortened

ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#%"
_NAME_WIDTH = 46


def render_text(
    data: dict[str, Any],
    out: TextIO,
    *,
    width: int | None = None,
    color: bool | None = None,
) -> None:
    """Write the report as text.

    `width` and `color` are the terminal's unless said; where `out` is not a terminal,
    or NO_COLOR is set, there is no color.
    """
    page = _Page(console_for(out, width=width, color=color))
    page.blocks = _blocks_for(out)
    page.line(data["title"], "bold")
    page.line(data["headline"])
    page.line()
    page.pairs([(c["label"].lower(), c["value"], c["detail"]) for c in data["cards"]])
    if data["command"]:
        page.line()
        page.pairs([("made by", data["command"])])
    if data["tides"]:
        page.tide(data["tides"][0])
    if data.get("diff"):
        page.changes(data["diff"])
    else:
        page.modules(data["modules"], is_profile=data["is_profile"])
    if data["peak"] and data["peak"]["rows"]:
        page.at_peak(data["peak"], data["ops"])
    if data["fidelity"]:
        page.fidelity(data["fidelity"])
    if data["notes"]:
        page.notes(data["notes"])


def _blocks_for(out: TextIO) -> str:
    try:
        _BLOCKS.encode(getattr(out, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _BLOCKS


def sparkline(values: Sequence[int], top: int, blocks: str = _BLOCKS) -> str:
    """The values as blocks, from nothing to `top`; what is not nothing shows.

    >>> sparkline([0, 1, 50, 100], 100)
    ' ▁▄█'
    """
    levels = len(blocks) - 1
    found: list[str] = []
    for value in values:
        level = min(levels, value * levels // max(1, top))
        found.append(blocks[max(level, 1 if value else 0)])
    return "".join(found)


class _Page(Sheet):
    blocks = _BLOCKS

    def tide(self, tide: dict[str, Any]) -> None:
        over = tide["outline"]
        names = (tide["label"], over["label"]) if over else (tide["label"],)
        indent = max(map(len, names)) + 2
        columns = max(20, min(72, self.console.width - indent - 12))
        top = max(tide["peak_bytes"], over["peak_bytes"] if over else 0)
        self.heading("Live bytes over the step")
        for curve, style in ((tide, "cyan"), (over, "blue")):
            if curve:
                values = _by_column(curve, tide["num_runs"], columns)
                row = Text(printable(curve["label"]).ljust(indent), style="dim")
                row.append(sparkline(values, top, self.blocks), style=style)
                row.append(f"  {format_bytes(curve['peak_bytes'])}", style="dim")
                self.write(row, no_wrap=True, crop=False, overflow="ignore")
        self.line(" " * indent + _phase_line(tide, columns), "dim")

    def modules(self, modules: Sequence[dict[str, Any]], *, is_profile: bool) -> None:
        if not modules:
            return
        self.heading(
            "Kept by module" if is_profile else "Kept and recomputed by module"
        )
        rows = [
            (
                shortened(m["label"], _NAME_WIDTH),
                f"x{m['num_modules']}" if m["num_modules"] > 1 else "",
                format_bytes(m["kept_bytes"]) if m["kept_bytes"] else "",
                format_bytes(m["recomputed_bytes"]) if m["recomputed_bytes"] else "",
                format_seconds(m["recompute_seconds"])
                if m["recompute_seconds"]
                else "",
            )
            for m in modules[:ROWS]
        ]
        headings = ("module", "", "kept", "recomputed", "extra time")
        cut = 3 if is_profile else 5
        self.table(headings[:cut], [r[:cut] for r in rows])
        self.more(len(modules))

    def more(self, count: int) -> None:
        if count > ROWS:
            self.line(f"and {count - ROWS} more", "dim")

    def at_peak(self, peak: dict[str, Any], ops: dict[str, list[Any]]) -> None:
        name = ops["name"][peak["op"]] if peak["op"] >= 0 else "nothing"
        place = ops["module"][peak["op"]] if peak["op"] >= 0 else ""
        source = ops["source"][peak["op"]] if peak["op"] >= 0 else ""
        where = ", ".join(filter(None, (place, source)))
        self.heading(
            f"Alive at the peak, while {name} runs" + f" ({where})" * bool(where)
        )
        rows = [
            (
                _storage_name(r),
                KIND_NAMES.get(str(r["kind"]), ""),
                f"x{r['num_storages']}" if r["num_storages"] > 1 else "",
                format_bytes(r["bytes"]),
                format_percent(r["bytes"] / max(1, peak["bytes"])),
            )
            for r in peak["rows"][:ROWS]
        ]
        self.table(("storage", "<kind", "", "bytes", "share"), rows)
        self.more(len(peak["rows"]))

    def fidelity(self, fidelity: dict[str, Any]) -> None:
        self.heading("Prediction and measurement")
        if fidelity["rows"]:
            self.table(
                ("", "predicted", "measured", "difference"),
                [
                    (
                        f"{r['what']}, {r['name']}",
                        _quantity(r["predicted"], r["unit"]),
                        _quantity(r["measured"], r["unit"]),
                        format_percent(r["difference"], signed=True),
                    )
                    for r in fidelity["rows"]
                ],
            )
        for check in fidelity["checks"]:
            verdict = "equal, bit by bit" if check["equal"] else "DIFFERENT"
            self.line(f"{check['name']}: {verdict}")

    def changes(self, diff: dict[str, Any]) -> None:
        self.table(
            ("", diff["names"][0], diff["names"][1], "change"),
            [(r["name"], r["first"], r["second"], r["change"]) for r in diff["rows"]],
        )
        for part in diff["parts"]:
            self.heading(part["title"])
            self.table(
                part["headings"], [[str(c) for c in r] for r in part["rows"][:ROWS]]
            )
            self.more(len(part["rows"]))

    def notes(self, notes: Sequence[dict[str, str]]) -> None:
        self.heading("Notes")
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        for note in notes:
            table.add_row(Text("-"), Text(printable(note["text"])))
        self.write(table)


def _storage_name(row: dict[str, Any]) -> str:
    """The module, and the op in it that makes the storage unless it is named alike."""
    said = not row["made_by"] or row["label"].startswith(row["made_by"])
    name = row["label"] if said else f"{row['label']} {row['made_by']}"
    return shortened(name, _NAME_WIDTH)


def _quantity(value: float, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else format_seconds(value)


def _by_column(curve: dict[str, Any], num_runs: int, columns: int) -> list[int]:
    """The highest sample of each column of runs; a column without one repeats."""
    found = [-1] * min(columns, max(1, num_runs))
    for run, value in zip(curve["run"], curve["live_bytes"], strict=True):
        column = min(len(found) - 1, int(run * len(found) / max(1, num_runs)))
        found[column] = max(found[column], value)
    last = 0
    for column, value in enumerate(found):
        last = found[column] = value if value >= 0 else last
    return found


def _phase_line(tide: dict[str, Any], columns: int) -> str:
    """The names of the phases under their stretches."""
    runs = max(1, tide["num_runs"])
    columns = min(columns, runs)
    line = ""
    for band in tide["bands"]:
        start = max(len(line), round(band["first_run"] * columns / runs))
        line = line.ljust(start) + band["phase"] + " "
    return line.rstrip()
