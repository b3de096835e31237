"""What one rank needs on meshes that are not there: Llama-3 at 8k and 32k tokens.

`python benchmarks/meshes.py` profiles Llama-3 8B on 8 ranks, 70B on 64 and 405B on
1,024, plans each within 70 GiB of an H100, and looks for the largest batch and sequence
that fit. `--only 405b/8192` does one of them. Each runs in a process of its own, whose
CPU time and peak are written down. Results go to `benchmarks/results/meshes.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "meshes.json"
BUDGET = 70 << 30
MESHES = {"8b": "dp=8", "70b": "dp=8,tp=8,sp=8", "405b": "dp=128,tp=8,sp=8"}
TOKENS = (8192, 32768)


def profiled(size: str, tokens: int, batch: int) -> Any:
    import lowtide
    from lowtide.models import build_fake

    options = {"size": size, "sequence": tokens, "dtype": "bfloat16"}
    made = build_fake("llama", batch=batch, **options)
    how: dict[str, Any] = {"how": "estimate", "device": "h100"}
    return lowtide.profile(
        made.model, made.batch, loss=made.loss, mesh=MESHES[size], **how
    )


def planned(size: str, tokens: int, batch: int = 1) -> dict[str, Any]:
    import lowtide
    from lowtide.step.walk import walk

    step = profiled(size, tokens, batch)
    row: dict[str, Any] = {
        "size": size,
        "mesh": MESHES[size],
        "tokens": tokens,
        "batch": batch,
        "ops": len(step.ops),
        "unplanned_bytes": step.baseline_peak_bytes,
    }
    try:
        plan = lowtide.plan(step, budget=BUDGET)
    except lowtide.BudgetTooSmallError as error:
        row["lowest_bytes"] = error.floor_bytes
        return row
    row |= {"peak_bytes": plan.peak_bytes, "overhead": plan.overhead}
    walked = walk(step, plan.schedule)
    at_peak = {kind: live[walked.peak_run] for kind, live in walked.by_kind.items()}
    return {**row, "kinds": {kind: n for kind, n in at_peak.items() if n}}


def one(size: str, tokens: int) -> dict[str, Any]:
    """A size at so many tokens, and the largest batch that fits, by doubling."""
    began = time.process_time()
    row = planned(size, tokens)
    row["cpu_seconds"] = round(time.process_time() - began, 1)
    batch = 1
    found = row
    while "peak_bytes" in found and batch < 64:
        row["largest_batch"] = batch
        batch *= 2
        found = planned(size, tokens, batch)
    row["next_lowest_bytes"] = found.get("lowest_bytes")
    row["process_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="such as 405b/8192")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        size, _, tokens = asked.one.partition("/")
        print(json.dumps(one(size, int(tokens))))
        return
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    keys = [f"{size}/{tokens}" for size in MESHES for tokens in TOKENS]
    for key in [asked.only] if asked.only else keys:
        command = [sys.executable, __file__, "--one", key]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows[key] = json.loads(done.stdout.splitlines()[-1])
        print(key, rows[key], flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
