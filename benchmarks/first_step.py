"""Time from the start of a process to the end of its first planned step.

Three processes train a model for one step: under a budget with nothing kept on disk,
under a budget again, and by `torch.compile(backend="aot_eager")`. Each imports all that
it needs, builds the model and prints when its first backward has ended.

    python benchmarks/first_step.py                  # on a quiet machine
    python benchmarks/first_step.py gpt2 --budget 70%
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "first_step.json"
MODELS = ("gpt2", "resnet50")

CHILD = """
import sys, time
name, how, began = sys.argv[1], sys.argv[2], float(sys.argv[3])
import torch
from lowtide import models
example = models.build(name)
model, batch, loss = example.model, example.batch, example.loss
import lowtide
if how == "aot_eager":
    call = torch.compile(model, backend="aot_eager")
else:
    call = lowtide.optimize(model, budget=how)
from lowtide.engine.training import arguments_of, default_loss
output = arguments_of(batch).call(call)
(loss or default_loss)(output).backward()
print(time.time() - began)
"""


def seconds(name: str, how: str, directory: str) -> float:
    """From the start of a process to the end of its first step."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, name, how, str(began)],
        env={**os.environ, "LOWTIDE_CACHE_DIR": directory},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--budget", default="70%")
    asked = parser.parse_args()
    rows = {}
    for name in asked.models:
        with tempfile.TemporaryDirectory() as directory:
            first = seconds(name, asked.budget, directory)
            second = seconds(name, asked.budget, directory)
        other = seconds(name, "aot_eager", directory)
        rows[name] = {
            "budget": asked.budget,
            "first_seconds": first,
            "second_seconds": second,
            "aot_eager_seconds": other,
            "second_ratio": second / other,
        }
        print(name, json.dumps(rows[name]), flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
