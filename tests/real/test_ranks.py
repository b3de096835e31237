"""Two processes that train one model together."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "ranks"


def ranks_say(script: str, *args: str, count: int = 2) -> list[dict[str, Any]]:
    """What so many ranks print, line by line, in the order in which it comes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", f"{count}", str(HERE / script), *args]
    # So that scripts share helpers, as tests do.
    root = f"{HERE.parents[2]}"
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # Lines of two processes may run into one another, and trainers print their own.
    text, found = done.stdout.replace("\n", ""), []
    while '{"' in text:
        text = text[text.index('{"') :]
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
        # Gradients come from the last block to the first, as without lowtide, and
        # buckets are sent while those of blocks before are still to come.
        arrived = [event for event in seen["events"] if event.startswith("block")]
        assert arrived == sorted(arrived, reverse=True), seen
        if "bucket" in seen["events"]:
            rest = seen["events"][seen["events"].index("bucket") :]
            assert {"part", "block 0", "block 1"} <= {*rest}, seen


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
@pytest.mark.parametrize("count", [2, 3])
def test_unusual_ways_to_train_give_the_same_bits(count: int):
    cases = ["other sizes", "two forwards", "accumulation", "unused here and there"]
    if count == 2:
        cases += ["a second backward", "an error in between", "unused that change"]
        cases += ["uneven inputs", "other masks"]
    said = ranks_say("hostile.py", *cases, count=count)
    assert len(said) == count * len(cases)
    assert all(seen["equal"] for seen in said), said


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "lightning"])
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_trainers_train_to_the_same_bits(library: str, way: str):
    said = ranks_say("trainers.py", f"{library} {way}")
    assert [seen["rank"] for seen in sorted(said, key=lambda s: s["rank"])] == [0, 1]
    for seen in said:
        plain, planned = seen["peaks"]
        assert seen["equal"], seen
        assert seen["sharded"] == (way == "fsdp2"), seen
        assert seen["left"] == seen["warnings"] == [], seen
        assert planned < plain, seen
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


def outcomes(case: str, unlucky: int) -> list[tuple[int, dict[str, Any]]]:
    """How three ranks end that nobody watches, and what they say."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": "3"}
    command = [sys.executable, str(HERE / "gone.py"), case, f"{unlucky}"]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **place, "RANK": f"{rank}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        texts = [each.communicate(timeout=300)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    said = [json.loads(text) if text else {} for text in texts]
    return list(zip((each.returncode for each in ranks), said, strict=True))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "unlucky", "said"),
    [
        ("raises", 1, "rank 1 cannot go on, .* ValueError: a bad batch"),
        ("killed in step 0", 1, "rank 1 cannot go on, .* no sign of life"),
        ("killed in step 0", 0, "rank 0 cannot go on, .* is gone"),
        ("killed in step 2", 1, "Connection closed by peer"),  # gloo's own words
        ("leaves", 2, "rank 2 cannot go on, .* its process has ended"),
    ],
)
def test_a_rank_that_ends_ends_the_others(case: str, unlucky: int, said: str):
    for rank, (code, seen) in enumerate(outcomes(case, unlucky)):
        if rank != unlucky:
            assert code == 1
            assert re.search(said, seen["text"]), seen


@pytest.mark.real
@pytest.mark.slow
def test_a_rank_with_another_graph_does_not_stop_the_others():
    ends = outcomes("another graph", 1)
    assert [code for code, _ in ends] == [0, 0, 0]
    assert all(seen["plans"] for _, seen in ends)
    assert len({str(seen["gradient"]) for _, seen in ends}) == 1
