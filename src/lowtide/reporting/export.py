"""Plans in the forms other tools read.

* `chrome`: a trace for Perfetto or chrome://tracing, with a counter of live bytes.
* `memory_viz`: the snapshot that pytorch.org/memory_viz and torch's own readers take.
* `csv`: the timeline, one row for each run of an op.
* `tags`: for each forward op MUST_SAVE or MUST_RECOMPUTE, the words of torch's
  selective form of `torch.utils.checkpoint`; `policy` is the same as a Python file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.reporting.policies import policy_file, policy_tags
from lowtide.reporting.snapshot import snapshot_bytes
from lowtide.step.analysis.csv import write_rows
from lowtide.step.files import write_whole
from lowtide.step.graph import StepGraph
from lowtide.step.names import KIND_NAMES
from lowtide.step.plan import Plan
from lowtide.step.schedule import check_match, make_plan, with_frees
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
    if plan is None:
        plan = make_plan(step, with_frees(step, step.baseline), planner="keep_all")
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
    return {
        "ph": "M",
        "name": what,
        "pid": process,
        "tid": thread,
        "ts": 0,
        "args": {"name": name},
    }


def _trace_events(walk: Walk, process: int) -> list[dict[str, Any]]:
    kinds = [kind for kind in KIND_NAMES if any(walk.by_kind[kind])]
    events: list[dict[str, Any]] = []
    end = 0.0

    def count(at: float, columns: Mapping[str, Sequence[int]], run: int) -> None:
        events.append(
            {
                "ph": "C",
                "name": "live bytes",
                "pid": process,
                "tid": 1,
                "ts": at,
                "args": {KIND_NAMES[kind]: columns[kind][run] for kind in kinds},
            }
        )

    for number, run in enumerate(walk.runs):
        op = walk.step.ops[run.op]
        now, end = end, end + max(op.seconds * 1e6, LEAST_MICROSECONDS)
        events.append(
            {
                "ph": "X",
                "cat": "recompute" if run.again else op.phase,
                "name": op.name,
                "pid": process,
                "tid": 1,
                "ts": now,
                "dur": end - now,
                "args": {
                    "target": op.target,
                    "module": op.module,
                    "source": op.source,
                    "run": number,
                },
            }
        )
        count(now, walk.by_kind, number)
        if run.after_bytes < run.live_bytes:
            count(end, walk.by_kind_after, number)
    return events


_TIMELINE = "run start_seconds seconds op target module source again live_bytes".split()


def timeline_csv(step: StepGraph, plan: Plan) -> str:
    """The timeline of a plan: one row for each run, bytes by kind."""
    walked = walk(step, plan.schedule)
    out = io.StringIO()
    write_rows(
        out,
        [*_TIMELINE, *(f"{kind}_bytes" for kind in walked.by_kind)],
        (
            (
                number,
                run.begin_seconds,
                op.seconds,
                op.name,
                op.target,
                op.module,
                op.source,
                int(run.again),
                run.live_bytes,
                *(column[number] for column in walked.by_kind.values()),
            )
            for number, run in enumerate(walked.runs)
            for op in (step.ops[run.op],)
        ),
    )
    return out.getvalue()


FORMS: dict[str, Callable[[StepGraph, Plan], str | bytes]] = {
    "chrome": chrome_trace,
    "memory_viz": snapshot_bytes,
    "csv": timeline_csv,
    "tags": policy_tags,
    "policy": policy_file,
}
