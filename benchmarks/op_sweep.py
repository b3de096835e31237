"""Every differentiable op of torch, in a training step of its own, against eager.

    python benchmarks/op_sweep.py             # all; what is known is not run again
    python benchmarks/op_sweep.py --again     # also again what was not equal
    python benchmarks/op_sweep.py nn.functional.conv2d prod
    python benchmarks/op_sweep.py --to elsewhere.json

The ops and their samples are those of torch's own tests, in 32 and 16 bits. Each step
is run twice in eager, to find ops that do not even agree with themselves, and once
with everything recomputed; results, gradients and the generator are compared bit for
bit, the sign of zero included. Ops run in child processes of a few ops each, because
some samples crash the process. Results go to `benchmarks/results/op_sweep.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from tests.exactness.ops import EQUAL, compare, differentiable

RESULTS = Path(__file__).parent / "results" / "op_sweep.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHUNK = 50
SAMPLES = {torch.float32: 2, torch.bfloat16: 1}
CHILD_SECONDS = 1200


def all_ops() -> dict[str, tuple[Any, torch.dtype]]:
    """Each op in each type, by a name such as `conv2d float32`."""
    found: dict[str, tuple[Any, torch.dtype]] = {}
    for word, dtype in DTYPES.items():
        for op in differentiable(dtype):
            name = op.name + (
                f"/{op.variant_test_name}" if op.variant_test_name else ""
            )
            found[f"{name} {word}"] = (op, dtype)
    return found


def child(names: list[str]) -> None:
    """Compare some ops, one line of JSON each, as soon as it is known."""
    torch.set_num_threads(1)
    ops = all_ops()
    for name in names:
        op, dtype = ops[name]
        outcome = compare(op, dtype, SAMPLES[dtype])
        print(json.dumps([name, outcome.verdict, outcome.reason]), flush=True)


def run(names: list[str]) -> dict[str, list[str]]:
    """Compare some ops in a child process; one that ends it is known by that."""
    done: dict[str, list[str]] = {}
    while len(done) < len(names):
        left = [n for n in names if n not in done]
        command = [sys.executable, __file__, "--child", *left]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=CHILD_SECONDS
            )
            text, why = ended.stdout, f"exit code {ended.returncode}"
        except subprocess.TimeoutExpired as error:
            text = (error.stdout or b"").decode()
            why = f"no end in {CHILD_SECONDS} s"
        for line in text.splitlines():
            if line.startswith("["):
                name, *outcome = json.loads(line)
                done[name] = outcome
        left = [n for n in left if n not in done]
        if left:
            done[left[0]] = ["process ended", why]
    return done


def main() -> None:
    """Compare what is not known yet, or what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--to", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        return child(given.ops)
    known: dict[str, list[str]] = {}
    if given.to.exists():
        known = json.loads(given.to.read_text())["ops"]
    names = list(all_ops())
    wanted = [n for n in names if n not in known]
    if given.again:
        wanted = [n for n in names if known.get(n, [""])[0] != EQUAL]
    elif given.ops:
        wanted = [n for n in names if n.rsplit(" ", 1)[0] in given.ops]
    for first in range(0, len(wanted), CHUNK):
        outcomes = run(wanted[first : first + CHUNK])
        known.update(outcomes)
        for name, (verdict, reason) in outcomes.items():
            if verdict != EQUAL:
                print(f"{name}: {verdict}: {reason}", flush=True)
        write(given.to, {n: known[n] for n in names if n in known})
    print(dict(Counter(verdict for verdict, _ in known.values())))


def write(path: Path, known: dict[str, list[str]]) -> None:
    """Save what is known so far."""
    counts = Counter(verdict for verdict, _ in known.values())
    record = {
        "torch": torch.__version__,
        "number": len(known),
        "verdicts": dict(counts.most_common()),
        "ops": known,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
