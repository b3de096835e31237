"""The same step and limit give the same plan, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide
from lowtide import models

ROOT = Path(__file__).parents[2]
PLAN = """
import json, sys
from lowtide.planners.auto import plan
from lowtide.step.graph import StepGraph
from tests.graphs import transformer
found = []
for step in (transformer(3), *map(StepGraph.load, sys.argv[1:])):
    lowest = plan(step, None)
    budget = (lowest.peak_bytes + step.baseline_peak_bytes) // 2
    found += [lowest, plan(step, budget, time_limit=0.4)]
print(json.dumps([each.to_dict() for each in found]))
"""
BURN = "while True: pass"


def answer(process: subprocess.Popen[str]) -> str:
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    return printed


def start(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    paths = (str(ROOT), str(ROOT / "src"))
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_three_hash_seeds_and_a_busy_machine_give_the_same_plan(tmp_path: Path) -> None:
    files: list[str] = []
    for name in ("tiny_gpt", "resnet18"):
        example = models.build_fake(name)
        step = lowtide.profile(
            example.model, example.batch, loss=example.loss, how="estimate"
        )
        files.append(str(tmp_path / f"{name}.step.json"))
        step.save(files[-1])
    seeds = [start(PLAN, *files, PYTHONHASHSEED=seed) for seed in "012"]
    answers = {answer(process) for process in seeds}
    burning = [start(BURN) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        answers.add(answer(start(PLAN, *files)))
    finally:
        for process in burning:
            process.kill()
            process.communicate()
    assert len(answers) == 1
