"""Plans in the forms other tools read.

* `chrome`: a trace for Perfetto or chrome://tracing, with a counter of live bytes.
* `memory_viz`: the snapshot that pytorch.org/memory_viz and torch's own readers take.
* `csv`: the timeline, one row for each run of an op.
* `tags`: for each forward op MUST_SAVE or MUST_RECOMPUTE, the words of torch's
  selective form of `torch.utils.checkpoint`; `policy` is the same as a Python file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.planners.keep_all import plan as keep_all
from lowtide.reporting.html import filled
from lowtide.reporting.snapshot import snapshot_bytes
from lowtide.step.analysis.csv import as_csv
from lowtide.step.files import write_whole
from lowtide.step.graph import FOLDED, Op, StepGraph
from lowtide.step.names import KIND_NAMES
from lowtide.step.plan import Plan
from lowtide.step.schedule import check_match, with_frees
from lowtide.step.walk import Walk, walk

# A run that takes no time still gets a moment, so that no reader merges two of them.
LEAST_MICROSECONDS = 0.001


def export(
    step: StepGraph,
    plan: Plan | None,
    path: str | Path,
    *,
    to: str = "chrome",
    force: bool = False,
) -> Path:
    """Write a plan (the baseline, if None) in the form `to`; one of `FORMS`."""
    if to not in FORMS:
        raise InvalidArgumentError(
            f"export(to={to!r})",
            "there is no such form",
            f"Use one of: {', '.join(FORMS)}",
        )
    plan = keep_all(step) if plan is None else plan
    check_match(step, plan)
    return write_whole(path, FORMS[to](step, plan), force=force)


def chrome_trace(step: StepGraph, plan: Plan) -> str:
    """The plan, and the baseline as a second process, as a Chrome trace in JSON.

    Each has a track of runs and a counter of live bytes by kind. The largest sum over
    the kinds of one counter event is the peak.
    """
    baseline = with_frees(step, step.baseline)
    events: list[dict[str, Any]] = []
    for process, (name, items) in enumerate(
        ((f"plan ({plan.planner})", plan.schedule), ("baseline", baseline)), 1
    ):
        events.append(_named("process_name", process, 0, name))
        events.append(_named("thread_name", process, 1, "ops"))
        events.extend(_trace_events(walk(step, items), process))
    meta = {
        "lowtide": "trace",
        "step": step.name,
        "fingerprint": step.fingerprint,
        "planner": plan.planner,
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
    }
    # torch's own readers look for the first two keys.
    whole = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "displayTimeUnit": "ms",
        "otherData": meta,
        "traceEvents": events,
    }
    return json.dumps(whole, separators=(",", ":"))


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    place = {"pid": process, "tid": thread, "ts": 0}
    return {"ph": "M", "name": what, **place, "args": {"name": name}}


def _trace_events(walk: Walk, process: int) -> Iterator[dict[str, Any]]:
    kinds = [kind for kind in KIND_NAMES if any(walk.by_kind[kind])]
    end = 0.0

    def count(at: float, columns: Mapping[str, Sequence[int]], run: int) -> Any:
        amounts = {KIND_NAMES[kind]: columns[kind][run] for kind in kinds}
        place = {"pid": process, "tid": 1, "ts": at}
        return {"ph": "C", "name": "live bytes", **place, "args": amounts}

    for number, run in enumerate(walk.runs):
        op = walk.step.ops[run.op]
        now, end = end, end + max(op.seconds * 1e6, LEAST_MICROSECONDS)
        about = {name: getattr(op, name) for name in ("target", "module", "source")}
        yield {
            "ph": "X",
            "cat": "recompute" if run.again else op.phase,
            "name": op.name,
            "pid": process,
            "tid": 1,
            "ts": now,
            "dur": end - now,
            "args": {**about, "run": number},
        }
        yield count(now, walk.by_kind, number)
        if run.after_bytes < run.live_bytes:
            yield count(end, walk.by_kind_after, number)


_ABOUT_OP = ("seconds", "name", "target", "module", "source")
_TIMELINE = "run start_seconds seconds op target module source again live_bytes".split()


def timeline_csv(step: StepGraph, plan: Plan) -> str:
    """The timeline of a plan: one row for each run, bytes by kind."""
    walked = walk(step, plan.schedule)
    rows = (
        (
            *(number, run.begin_seconds),
            *(getattr(step.ops[run.op], name) for name in _ABOUT_OP),
            *(int(run.again), run.live_bytes),
            *(column[number] for column in walked.by_kind.values()),
        )
        for number, run in enumerate(walked.runs)
    )
    headings = [*_TIMELINE, *(f"{kind}_bytes" for kind in walked.by_kind)]
    return as_csv(headings, rows)


def policies(step: StepGraph, plan: Plan) -> list[dict[str, Any]]:
    """For each forward op, whether the selective form saves or recomputes it.

    An op is saved if anything it makes is kept; of ops folded into one, each is asked
    for itself. What lowtide recomputes more than once, or frees and makes again within
    the backward, the selective form cannot say; it gets MUST_RECOMPUTE, which keeps the
    least.
    """
    kept = frozenset(plan.kept)
    return [
        {
            "op": name,
            "target": target,
            "module": op.module,
            "source": op.source,
            "policy": "MUST_SAVE" if kept.intersection(made) else "MUST_RECOMPUTE",
        }
        for op in step.ops
        if op.phase == "forward" and op.opens < 0 and not op.standby
        for name, target, made in _parts(step, op)
    ]


def _parts(step: StepGraph, op: Op) -> list[tuple[str, str, set[int]]]:
    """The ops folded into this one: name, target, and what is left of its results.

    What the last one makes has its name; all else comes from the first.
    """
    names, targets = op.name.split(FOLDED), op.target.split(FOLDED)
    if len(names) != len(targets):  # in a file; names are free
        names, targets = [op.name], [op.target]
    last = {s for s in op.writes if step.storages[s].name == names[-1]}
    if len(names) == 1:
        last = set(op.writes)
    made = [set(op.writes) - last, *(set[int]() for _ in names[2:]), last]
    return list(zip(names, targets, made[-len(names) :], strict=True))


def policy_tags(step: StepGraph, plan: Plan) -> str:
    """The policies as JSON, in the order in which the forward runs the ops."""
    whole = {
        "lowtide": "tags",
        "schema": 1,
        "step": step.name,
        "fingerprint": step.fingerprint,
        "planner": plan.planner,
        "ops": policies(step, plan),
    }
    return json.dumps(whole, indent=1)


def policy_file(step: StepGraph, plan: Plan) -> str:
    """The policies as a Python file with a `Policy` for torch's selective form."""
    fates: dict[str, str] = {}
    for row in policies(step, plan):
        letter = "S" if row["policy"] == "MUST_SAVE" else "r"
        fates[row["target"]] = fates.get(row["target"], "") + letter
    lines = [f"    {json.dumps(k)}: {json.dumps(v)},\n" for k, v in fates.items()]
    parts = {
        "step": _word(step.name),
        "fingerprint": step.fingerprint,
        "planner": _word(plan.planner),
        "fates": f"{{\n{''.join(lines)}}}",
    }
    return filled("policy.txt", parts)


def _word(text: str) -> str:
    """A name that cannot end the docstring it stands in."""
    return re.sub(r"[^\w.+ -]", "_", text)


FORMS: dict[str, Callable[[StepGraph, Plan], str | bytes]] = {
    "chrome": chrome_trace,
    "memory_viz": snapshot_bytes,
    "csv": timeline_csv,
    "tags": policy_tags,
    "policy": policy_file,
}
