"""Damages step and plan files at random, and counts what comes of it.

    python benchmarks/fuzz.py 10000

Every damaged file is read and, if it still reads, planned, simulated, compared,
reported and exported. It is either accepted or refused with a `LowtideError`; any other
error is a bug, and its seed is printed. Writes `results/fuzz.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from lowtide import planners
from tests.damage import mutated, outcome, use_plan, use_step, with_facts
from tests.graphs import GRAPHS

RESULTS = Path(__file__).parent / "results" / "fuzz.json"


def main() -> None:
    """Run the mutations and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    steps = [with_facts(step) for step in GRAPHS if len(step.ops) < 60]
    plans = [planners.load("recompute_all").plan(step) for step in steps]
    counts = {"step": Counter[str](), "plan": Counter[str]()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.json"
        for seed in range(options.seed, options.seed + options.count):
            chance = random.Random(seed)
            place = chance.randrange(len(steps))
            kind = chance.choice(("step", "plan"))
            record = steps[place] if kind == "step" else plans[place]
            path.write_bytes(mutated(json.dumps(record.to_dict()), chance))
            use = use_step if kind == "step" else use_plan
            found = outcome(use, path, Path(folder), steps[place])
            if found not in ("accepted", "refused"):
                print(f"seed {seed}, {kind}: {found}", flush=True)
                found = found.partition(":")[0]
            counts[kind][found] += 1
    results = {
        "mutations": options.count,
        "seed": options.seed,
        **{kind: dict(sorted(count.items())) for kind, count in counts.items()},
    }
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
