"""Two processes that train one model together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "ranks"


def ranks_say(script: str, *args: str) -> list[dict[str, Any]]:
    """What two ranks print, line by line, in the order in which it comes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(HERE / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    # Lines of two processes may run into one another.
    text, found = done.stdout.replace("\n", ""), []
    while "{" in text:
        text = text[text.index("{") :]
        said, end = json.JSONDecoder().raw_decode(text)
        found.append(said)
        text = text[end:]
    return found


@pytest.mark.real
@pytest.mark.slow
def test_ddp_trains_to_the_same_bits_by_one_plan():
    said = ranks_say("ddp.py")
    assert len(said) == 10
    for seen in said:
        assert seen["equal"], seen
        assert seen["one plan"], seen
        # Accumulated gradients are another step, and so another graph.
        assert seen["graphs"] == (2 if "no_sync" in seen["case"] else 1), seen
        assert seen["recomputed"], seen
        assert seen["peak"] <= seen["planned"], seen
        if "find_unused" not in seen["case"] and "bucket" in seen["events"]:
            # Buckets are sent while parts of the backward are still to come.
            assert "part" in seen["events"][seen["events"].index("bucket") :], seen


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        ["tensor parallel", "sequence parallel"],
        ["resharding", "without resharding", "mixed precision", "both"],
    ],
)
def test_a_divided_model_trains_to_the_same_bits(cases: list[str]):
    said = ranks_say("sharded.py", *cases)
    assert len(said) == 2 * len(cases)
    for seen in said:
        plain, planned = seen["peaks"]
        assert seen["equal"], seen
        if seen["case"] == "both":
            assert "left" not in seen, seen  # it is not planned, and says so
            continue
        assert planned < plain, seen
        assert seen["left"] == [], seen
        assert planned <= seen["promised"], seen


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("refusing", [0, 1])
def test_what_stops_one_rank_stops_all_with_its_error(refusing: int):
    said = {
        seen["rank"]: seen["error"] for seen in ranks_say("refuse.py", f"{refusing}")
    }
    own, other = said[refusing], said[1 - refusing]
    assert own[0] == "BudgetTooSmallError"
    assert other[0] == "RankError"
    assert other[1].startswith(f"rank {refusing} cannot go on")
    assert "below" in other[1]
