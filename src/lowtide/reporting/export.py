"""Plans in the forms other tools read.

* `chrome`: a trace for Perfetto or chrome://tracing, with a counter of live bytes.
* `memory_viz`: the snapshot that pytorch.org/memory_viz and torch's own readers take.
* `csv`: the timeline, one row for each run of an op.
* `tags`: for each forward op MUST_SAVE or MUST_RECOMPUTE, the words of torch's
  selective form of `torch.utils.checkpoint`; `policy` is the same as a Python file.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.reporting.snapshot import snapshot_bytes
from lowtide.reporting.tide import KIND_NAMES
from lowtide.reporting.walk import Walk
from lowtide.step.files import cell, write_whole
from lowtide.step.graph import FOLDED, Op, StepGraph
from lowtide.step.plan import Plan, Run
from lowtide.step.schedule import check_match, make_plan, with_frees
from lowtide.step.simulate import live_by_kind

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
        events.extend(_trace_events(Walk(step, tuple(items)), process))
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
    step, columns = walk.step, live_by_kind(walk.step, walk.items)
    kinds = [k for k in KIND_NAMES if any(columns[k])]
    events: list[dict[str, Any]] = []
    now, end, run = 0.0, 0.0, -1
    for position, item in enumerate(walk.items):
        is_run = type(item) is Run
        if is_run:
            run += 1
            op = step.ops[item.op]
            now, end = end, end + max(op.seconds * 1e6, LEAST_MICROSECONDS)
            events.append(
                {
                    "ph": "X",
                    "cat": "recompute" if walk.again[run] else op.phase,
                    "name": op.name,
                    "pid": process,
                    "tid": 1,
                    "ts": now,
                    "dur": end - now,
                    "args": {
                        "target": op.target,
                        "module": op.module,
                        "source": op.source,
                        "run": run,
                    },
                }
            )
        following = walk.items[position + 1] if position + 1 < len(walk.items) else None
        if not is_run and type(following) is not Run and following is not None:
            continue  # several frees at one moment: the last of them is enough
        events.append(
            {
                "ph": "C",
                "name": "live bytes",
                "pid": process,
                "tid": 1,
                "ts": now if is_run else end,
                "args": {KIND_NAMES[k]: columns[k][position] for k in kinds},
            }
        )
    return events


def timeline_csv(step: StepGraph, plan: Plan) -> str:
    """The timeline of a plan: one row for each run, bytes by kind."""
    walk = Walk(step, plan.schedule)
    kinds = list(walk.by_kind)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        "run start_seconds seconds op target module source again live_bytes".split()
        + [f"{kind}_bytes" for kind in kinds]
    )
    for run, number in enumerate(walk.ops):
        op = step.ops[number]
        writer.writerow(
            [
                run,
                walk.starts[run],
                op.seconds,
                *map(cell, (op.name, op.target, op.module, op.source)),
                int(walk.again[run]),
                walk.live_bytes[run],
                *(walk.by_kind[kind][run] for kind in kinds),
            ]
        )
    return out.getvalue()


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
    if len(names) != len(targets):  # a user's name with a plus sign in it
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


_POLICY_FILE = '''\
"""What to save and what to recompute, for torch.utils.checkpoint's selective form.

Written by lowtide for step {step} ({fingerprint}) with planner {planner}. Use:

    from functools import partial
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    context_fn = partial(create_selective_checkpoint_contexts, Policy())
    output = checkpoint(model, *inputs, use_reentrant=False, context_fn=context_fn)

Make a new Policy for each step. It knows ops by their name and their turn: the third
`aten.mm.default` of the forward is the third here. An op that is not here, because the
model is no longer the one that was planned, is recomputed. The selective form has fewer
choices than lowtide's own schedules, so expect a higher peak than the plan's.
"""

from torch.utils.checkpoint import CheckpointPolicy

# S saves, r recomputes; one letter for each time the op runs in the forward.
FATES = {fates}


class Policy:
    """Answers MUST_SAVE or MUST_RECOMPUTE for each op, in order."""

    def __init__(self):
        self.turns = {{True: {{}}, False: {{}}}}

    def __call__(self, ctx, op, *args, **kwargs):
        turns = self.turns[ctx.is_recompute]
        name = str(op)
        turn = turns.get(name, 0)
        turns[name] = turn + 1
        saved = FATES.get(name, "")[turn : turn + 1] == "S"
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.MUST_RECOMPUTE
'''


def policy_file(step: StepGraph, plan: Plan) -> str:
    """The policies as a Python file with a `Policy` for torch's selective form."""
    fates: dict[str, str] = {}
    for row in policies(step, plan):
        letter = "S" if row["policy"] == "MUST_SAVE" else "r"
        fates[row["target"]] = fates.get(row["target"], "") + letter
    lines = "".join(f"    {_quoted(k)}: {_quoted(v)},\n" for k, v in fates.items())
    return _POLICY_FILE.format(
        step=_word(step.name),
        fingerprint=step.fingerprint,
        planner=_word(plan.planner),
        fates=f"{{\n{lines}}}",
    )


def _quoted(text: str) -> str:
    return json.dumps(text)


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
