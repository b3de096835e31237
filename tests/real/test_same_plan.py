"""The same step and limit give the same plan, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = """
import json
from lowtide.planners.auto import plan
from tests.graphs import transformer
step = transformer(3)
span = step.baseline_peak_bytes - step.resident_bytes
budget = step.resident_bytes + int(0.35 * span)
within, lowest = plan(step, budget, time_limit=0.4), plan(step, None)
print(json.dumps([within.to_dict(), lowest.to_dict()]))
"""
BURN = "while True: pass"


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    paths = (str(ROOT), str(ROOT / "src"))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.real
@pytest.mark.slow
def test_three_hash_seeds_and_a_busy_machine_give_the_same_plan() -> None:
    answers = {start(PLAN, PYTHONHASHSEED=seed).communicate()[0] for seed in "012"}
    burning = [start(BURN) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        answers.add(start(PLAN).communicate()[0])
    finally:
        for process in burning:
            process.kill()
            process.communicate()
    assert len(answers) == 1
    assert answers != {""}
