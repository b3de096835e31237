"""Damaged step and plan files: random ones to try, and every use of what is read.

Used by `tests/unit/test_fuzz.py` and `benchmarks/fuzz.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lowtide
from lowtide import Plan, StepGraph, planners
from lowtide.reporting.export import FORMS
from lowtide.step.analysis.csv import table_of
from lowtide.step.analysis.summary import format_profile
from lowtide.step.schedule import make_plan, with_frees
from lowtide.step.simulate import simulate

# What may stand where something else should.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 63, 2**31, 2**60, -(2**63), 10**30, 0.5, 1e308),
    *(
        5e-324,
        -0.0,
        float("nan"),
        float("inf"),
        "",
        "x",
        "12",
        "a\ud800b",
        "n" * 20_000,
    ),
    *("=1+1", "</script>", "\x00\x1b[2J", [], {}, [[]], [0], ["x"], {"a": 1}),
)

# What has the right type, and may therefore get far.
LIKELY: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2, 3, 5, 7, 11, -1, -2, -5, 63, 2**20, 2**40, 2**58),
    float: (0.0, 5e-324, 1e-12, 1.0, 1e9),
    str: ("", "x", "a + b", "forward", "backward", "optimizer", "parameter", "turn"),
}
LIKELY[str] += tuple(text for text in STRANGE if isinstance(text, str))


def with_facts(step: StepGraph) -> StepGraph:
    """The step with the facts and notes that a captured one has, and a folded op."""
    first = replace(step.ops[0], name="first + then", target="mm + relu")
    step = replace(step, ops=(first, *step.ops[1:]))
    turn, end = step.turn, len(step.ops)
    row = [step.fingerprint, 0, turn, turn + 1, end]
    facts = {
        "pieces": [row] if turn >= 0 and len(step.regions) == 2 else [],
        "eager_extra_bytes": 64,
        "how": "measure",
        "target": ["train.py:make"],
    }
    return replace(step, facts=facts, notes=("a note",), device="cpu")


def mutated(text: str, chance: random.Random) -> bytes:
    """The file with one to three things wrong with it, as bytes or as data."""
    if chance.random() < 0.3:
        return _flipped(text.encode(), chance)
    data = json.loads(text)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _change(data, chance)
    if data.get("lowtide") == "step" and chance.random() < 0.8:
        _sign(data)
    text = json.dumps(data)
    if chance.random() < 0.05:
        depth = chance.choice((3, 500, 5000))
        text = text.replace("[]", "[" * depth + "]" * depth, 1)
    return text.encode()


def _flipped(raw: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(raw)
    match chance.randrange(4):
        case 0:
            return bytes(damaged[: chance.randrange(len(damaged))])
        case 1:
            place = chance.randrange(len(damaged))
            return bytes(damaged[:place] + damaged[place + chance.randrange(1, 40) :])
        case 2:
            place = chance.randrange(len(damaged))
            return bytes(
                damaged[:place] + damaged[place : place + 60] + damaged[place:]
            )
        case _:
            for _ in range(chance.choice((1, 2, 8))):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            return bytes(damaged)


def _change(data: Any, chance: random.Random) -> None:
    """Walk down to some place and delete, replace, repeat or rename what is there."""
    where = data
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(where[key], dict | list) and chance.random() < 0.85:
            where = where[key]
            continue
        break
    old = where[key]
    match chance.randrange(10):
        case 0:
            del where[key]
        case 1 if isinstance(where, dict):
            where[chance.choice(("z", "seconds", "", "\ud800"))] = where.pop(key)
        case 1:
            where.insert(key, old)
        case 2 if isinstance(old, int | float):
            where[key] = old + chance.choice((-1, 1, 7, 0.5, -old, old * 2**40))
        case 3 | 4:
            where[key] = chance.choice(STRANGE)
        case _:
            where[key] = chance.choice(LIKELY.get(type(old), STRANGE))


def _sign(data: dict[str, Any]) -> None:
    """Give a damaged step the fingerprint of its contents, if it is still a step.

    Otherwise the fingerprint would hide whatever else a reader lets through.
    """
    try:
        StepGraph.from_dict(data)
    except lowtide.LowtideError as error:
        _, _, told = str(error).partition("its contents hash to '")
        if told:
            data["fingerprint"] = told[:16]


def use_step(path: Path, out: Path, _: StepGraph) -> None:
    """All that is done with a step file, short of a search."""
    step = StepGraph.load(path)
    plan = planners.load("keep_all").plan(step)
    planners.load("recompute_all").plan(step)
    _use(step, plan, out)
    for table in ("storages", "ops", "modules"):
        table_of(step, table)
    format_profile(step, floor=False)
    str(lowtide.diff(step, step))


def use_plan(path: Path, out: Path, step: StepGraph) -> None:
    """All that is done with a plan file and its step."""
    plan = Plan.load(path)
    str(plan)
    lowtide.report(plan).to_html()
    baseline = make_plan(step, with_frees(step, step.baseline), planner="keep_all")
    str(lowtide.diff(baseline, plan))
    simulate(step, plan.schedule)
    str(lowtide.diff(baseline, plan, step=step))
    _use(step, plan, out)


def _use(step: StepGraph, plan: Plan, out: Path) -> None:
    made = lowtide.report(step, plan)
    str(made)
    made.save(out / "r.html", force=True)
    json.dumps(made.to_dict(), allow_nan=False)
    for form in FORMS:
        lowtide.export(step, plan, out / form, to=form, force=True)
    for record in (step, plan):
        record.save(out / "again.json", force=True)
        assert type(record).load(out / "again.json") == record


def outcome(use: Callable[..., None], path: Path, out: Path, step: StepGraph) -> str:
    """ "accepted", "refused", or the error that should not have come out."""
    try:
        use(path, out, step)
    except lowtide.LowtideError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return "accepted"
