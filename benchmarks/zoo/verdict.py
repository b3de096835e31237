"""What is to be said of a trial's record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]
# By how much a budget may be missed: what the C library adds to each block, and the
# objects of Python that are no tensors.
SLACK_SHARE, SLACK_BYTES = 0.01, 1 << 20
NO_BUDGET = "under no budget"
# How it is said that the whole step takes more, and that bits may differ.
TAKES_MORE = ("the step as a whole does not", "run at that peak")
LAST_BIT = "last bit"

# From what is hoped for to the worst.
VERDICTS = {
    "planned": "the same bits within the budget",
    "partly": "planned in parts, and said that the rest exceeds the budget",
    "nothing saved": "within what the budget may be missed by, but no lower than eager",
    "last bits": "computed other last bits, and said that it may",
    "unplanned": "ran as it is, and said so",
    "over budget": "needed more than the budget by over 1 % and 1 MiB",
    "other bits": "computed something else",
    "refused": "no budget below eager's peak was accepted",
    "exception": "raised where it trains without lowtide",
    "crash": "ended the process",
    "no end": "did not end in time",
    "not run": "does not train without lowtide either, so it tells nothing",
}


def verdict_of(record: Record) -> str:
    """The worst that can be said of a trial."""
    for key in ("not_run", "no_end", "crash", "exception", "refused"):
        if key in record:
            return key.replace("_", " ")
    if record["difference"] and "eager_differs_from_itself" not in record:
        is_said = any(LAST_BIT in w for w in record["warnings"])
        return "last bits" if is_said else "other bits"
    # A step without a planned graph that says nothing is no plan either.
    if record["forwards"] < 2 or any(NO_BUDGET in w for w in record["warnings"]):
        return "unplanned"
    if not over_budget(record):
        return "nothing saved" if saves_nothing(record) else "planned"
    is_said = any(text in w for w in record["warnings"] for text in TAKES_MORE)
    return "partly" if is_said else "over budget"


def over_budget(record: Record) -> bool:
    """Whether the step needed more than it may, by the ledger or as allocated."""
    most = record["budget_bytes"] * (1 + SLACK_SHARE) + SLACK_BYTES
    peaks = (record.get("peak_bytes"), record.get("ledger_peak_bytes"))
    return any(peak is not None and peak > most for peak in peaks)


def saves_nothing(record: Record) -> bool:
    """Whether the step needed as much as without lowtide.

    Where a budget lies close below eager's peak, it is within its slack.
    """
    peak, eager = record.get("peak_bytes"), record["eager_peak_bytes"]
    return peak is not None and peak > eager - (eager - record["budget_bytes"]) / 10


def reason_of(record: Record) -> str:
    """What was found, in one line; nothing if all is well."""
    verdict = verdict_of(record)
    if verdict == "planned":
        return ""
    if verdict in ("over budget", "partly", "nothing saved"):
        return bytes_of(record)
    if verdict in ("other bits", "last bits"):
        return record["difference"]
    if verdict == "unplanned":
        return " ".join(record["warnings"][:1]) or "no planned graph ran, unsaid"
    return record[verdict.replace(" ", "_")]


def bytes_of(record: Record) -> str:
    """The budget and what was needed, in MiB."""
    keys = "budget peak ledger_peak eager_peak".split()
    found = {k.replace("_", " "): record.get(f"{k}_bytes") for k in keys}
    return ", ".join(f"{k} {v / 2**20:.1f} MiB" for k, v in found.items() if v)


def table(known: dict[str, Record]) -> Iterator[list[str]]:
    """How many models of each library came to each verdict, as cells."""
    rooms = list(dict.fromkeys(name.split("/")[0] for name in known))
    counts = Counter((n.split("/")[0], verdict_of(r)) for n, r in known.items())
    yield ["", *rooms, "all"]
    for verdict in VERDICTS:
        row = [counts[room, verdict] for room in rooms]
        yield [verdict, *(str(n or "") for n in row), str(sum(row))]
