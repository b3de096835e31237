"""lowtide beside what people do today, really run: peaks, time and equal numbers.

    python benchmarks/against.py                  # every model, an hour on two cores
    python benchmarks/against.py vit --steps 3
    python benchmarks/against.py --draw           # the pictures of what was kept, again

For each model all methods of `lowtide bench --methods all` are run, and lowtide at the
measured peak of each, at its floor, and at the floor of activations alone. Peaks are
from fresh processes, times in turns with eager. `share` is lowtide's extra time over
the other method's at the same peak. Results go to `benchmarks/results/against.json` and
one picture for each model.
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
RESULTS = HERE / "against.json"
_GPT2 = ("-O", "sequence=128", "-O", "width=384", "-O", "vocab=4096")
_GPT2 += ("-O", "dropout=0.0")
# The batch of the first ones makes activations outweigh gradients; the last are small.
MODELS: dict[str, tuple[str, ...]] = {
    "resnet50": ("resnet50", "--batch", "8", "-O", "image=128"),
    "densenet121": ("densenet121", "--batch", "8", "-O", "image=128"),
    "vgg16": ("vgg16", "--batch", "8", "-O", "image=128"),
    "gpt2": ("gpt2", "--batch", "8", *_GPT2),
    "vit": ("vit", "--batch", "8"),
    "resnet50_small": ("resnet50", "--batch", "2", "-O", "image=128"),
    "gpt2_small": ("gpt2", "--batch", "1", *_GPT2),
    "vit_small": ("vit", "--batch", "1"),
}


def run(words: tuple[str, ...], steps: int, methods: str) -> dict[str, Any]:
    """One model through the command line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "lowtide", "bench", *words]
        command += ["--methods", methods, "--budgets", "theirs,floor,activations"]
        command += ["--steps", str(steps), "--time-limit", "5"]
        subprocess.run(
            [*command, "-o", str(file)], check=True, stdout=subprocess.DEVNULL
        )
        return json.loads(file.read_text())


def summary(name: str, data: dict[str, Any]) -> str:
    """The rows of one model, each other method beside lowtide at its peak."""
    rows = {row["name"]: row for row in data["rows"]}
    eager = rows["eager"]
    above = eager["peak_bytes"] - data["resident_bytes"]
    lines = [
        f"\n{name}: eager {eager['peak_bytes'] / 2**20:,.0f} MiB allocated, "
        f"{above / 2**20:,.0f} above the residents, activations "
        f"{eager['activation_peak_bytes'] / 2**20:,.0f}; {eager['seconds']:.2f} s",
        f"{'method':30} {'step':>6} {'activ.':>6} {'time':>7} {'lowtide':>8} "
        f"{'time':>7} {'share':>6} {'bound':>7}  numbers",
    ]
    for row in data["rows"][1:]:
        if row["matches"] or row["problem"]:
            continue
        ours = rows.get(f"lowtide_at_{row['name']}", {})
        step = (row["peak_bytes"] - data["resident_bytes"]) / above
        activations = row["activation_peak_bytes"] / eager["activation_peak_bytes"]
        text = (
            f"{row['label']:30} {step:6.2f} {activations:6.2f} "
            f"{row['time_ratio'] - 1:+7.1%}"
        )
        if ours and not ours["problem"]:
            mine = ours["time_ratio"] - 1
            theirs = row["time_ratio"] - 1
            share = f"{max(0.0, mine) / theirs:.2f}" if theirs > 0 else "-"
            peak = (ours["peak_bytes"] - data["resident_bytes"]) / above
            text += (
                f" {peak:8.2f} {mine:+7.1%} {share:>6} "
                f"{ours['bound_time_ratio'] - 1:+7.1%}"
            )
        else:
            text += " " * 33
        lines.append(f"{text}  {'equal' if row['is_exact'] else 'DIFFERENT'}")
    return "\n".join(lines)


def main() -> None:
    """Run the models named on the command line and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--draw", action="store_true", help="only the pictures, again")
    options = parser.parse_args()
    from lowtide.reporting.pictures.charts import against_picture

    for name in options.models:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        if options.draw and name not in kept:
            continue
        if options.draw:
            data = kept[name]
        else:
            data = run(MODELS[name], options.steps, options.methods)
            RESULTS.write_text(json.dumps({**kept, name: data}, indent=1) + "\n")
        print(summary(name, data), flush=True)
        (HERE / f"against-{name}.png").write_bytes(against_picture(data, "png"))


if __name__ == "__main__":
    main()
