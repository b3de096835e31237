"""A plan in the words of torch's selective form of `torch.utils.checkpoint`."""

from __future__ import annotations

import json
import re
from typing import Any

from lowtide.step.graph import FOLDED, Op, StepGraph
from lowtide.step.plan import Plan


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
