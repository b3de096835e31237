"""Larger batches in the memory of a small one, predicted and really run.

    python benchmarks/batches.py                  # all of them
    python benchmarks/batches.py resnet152

Each model goes through `lowtide batch`: the budget is the peak of its smallest batch
without lowtide, the others are two, two and a half and three times as large. Results go
to `benchmarks/results/batches.json`, with one picture for each model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "results"
RESULTS = HERE / "batches.json"
_GPT2 = ("gpt2", "-O", "layers=6", "-O", "width=384", "-O", "heads=6")
_GPT2 += ("-O", "vocab=4096", "-O", "sequence=128", "--batches", "4,8,10,12")
MODELS: dict[str, tuple[str, ...]] = {
    "resnet50": ("resnet50", "-O", "image=96", "--batches", "8,16,20,24"),
    "resnet152": ("resnet152", "-O", "image=96", "--batches", "8,16,20,24"),
    "gpt2": (*_GPT2, "-O", "dropout=0.0"),
    "gpt2_dropout": _GPT2,
}


def run(name: str) -> dict[str, Any]:
    """One model through the command line, its picture beside the results."""
    command = [sys.executable, "-m", "lowtide", "batch", *MODELS[name], "--json"]
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "batch.png"
        done = subprocess.run(
            [*command, "-o", str(picture)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        (HERE / f"batch-{name}.png").write_bytes(picture.read_bytes())
    return json.loads(done.stdout)


def summary(name: str, data: dict[str, Any]) -> str:
    """What each batch needs and takes, within the peak of the smallest."""
    lines = [
        f"\n{name}: {data['budget_bytes'] / 2**20:,.0f} MiB",
        f"{'batch':>5} {'peak':>7} {'with plan':>9} {'activations':>11} {'time':>7} "
        f"{'predicted':>9}",
    ]
    for row in data["rows"]:
        plain, ours = row["measured_baseline"], row["measured_planned"]
        if not plain or not ours:
            lines.append(f"{row['batch']:5} not measured")
            continue
        cut = ours["activation_peak_bytes"] / plain["activation_peak_bytes"] - 1
        lines.append(
            f"{row['batch']:5} {plain['peak_bytes'] / 2**20:7,.0f} "
            f"{ours['peak_bytes'] / 2**20:9,.0f} {cut:+11.1%} "
            f"{ours['seconds'] / plain['seconds'] - 1:+7.1%} "
            f"{row['planned_seconds'] / row['baseline_seconds'] - 1:+9.1%}"
        )
    lines.append(f"largest batch {data.get('largest_batch', '-')}")
    return "\n".join(lines)


def main() -> None:
    """Run the models named on the command line and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    for name in options.models:
        data = run(name)
        print(summary(name, data), flush=True)
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**kept, name: data}, indent=1) + "\n")


if __name__ == "__main__":
    main()
