"""Damaged files: whatever is read, nothing but a LowtideError may come out.

`benchmarks/fuzz.py` runs as many more as one likes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lowtide import planners
from tests.damage import mutated, outcome, use_plan, use_step, with_facts
from tests.graphs import GRAPHS

STEPS = [with_facts(step) for step in GRAPHS if len(step.ops) < 60]


@pytest.mark.parametrize("kind", ["step", "plan"])
def test_a_damaged_file_is_accepted_or_refused(kind: str, tmp_path: Path) -> None:
    use = use_step if kind == "step" else use_plan
    seen = {"accepted": 0, "refused": 0}
    for seed in range(250):
        chance = random.Random(seed)
        step = chance.choice(STEPS)
        made = step if kind == "step" else planners.load("recompute_all").plan(step)
        path = tmp_path / "damaged.json"
        path.write_bytes(mutated(json.dumps(made.to_dict()), chance))
        found = outcome(use, path, tmp_path, step)
        assert found in seen, f"seed {seed}: {found}"
        seen[found] += 1
    # Both ends are reached, so the damage is neither too mild nor too coarse.
    assert seen["accepted"] > 10
    assert seen["refused"] > 100
