"""Every training stack, as it is and under `lowtide run`: bits and peak.

Runs the scripts of `examples/stacks`, which do not know of lowtide, each in a process
of its own: plainly, and by `lowtide run --budget SHARE`. Compared are the losses that
were differentiated and all weights at the end, bit by bit; and the most bytes that the
operating system saw in a step above the state before it, without the first steps, in
which libraries load and lowtide plans. Time is measured by `peaks.py`: the allocator
that makes bytes visible here is slow.

    python benchmarks/stacks.py                      # needs the extra "integrations"
    python benchmarks/stacks.py timm_images --budget 50%
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "examples" / "stacks"
RESULTS = HERE / "results" / "stacks.json"
# The library of each script, and the share of its peak that it gets.
STACKS = {
    "transformers_trainer": ("transformers", "60%"),
    "trl_sft": ("trl", "70%"),
    "peft_lora": ("peft", "70%"),
    "accelerate_loop": ("accelerate", "60%"),
    "lightning_fit": ("lightning", "60%"),
    "timm_images": ("timm", "70%"),
    "diffusers_unet": ("diffusers", "70%"),
}
# Steps before this one load, plan, and make the optimizer's state.
FIRST_STEP = 3


def train(script: str, output: str) -> None:
    """Run a script in this process, and write down what its steps did."""
    from lowtide.integrations import register

    register()
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from lowtide.engine.costs.machine import status_bytes

    losses: list[str] = []
    peaks: list[int] = []
    weights: dict[int, torch.Tensor] = {}
    backward = torch.Tensor.backward
    before_bytes = 0

    def noted(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        losses.append(self.item().hex())
        backward(self, *args, **kwargs)

    def updated(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal before_bytes
        own = [p for group in optimizer.param_groups for p in group["params"]]
        if isinstance(own[0], FakeTensor):  # lowtide looks at what an update makes
            return
        weights.update({id(p): p for p in own})
        peaks.append(status_bytes("VmHWM") - before_bytes)
        Path("/proc/self/clear_refs").write_text("5")
        before_bytes = status_bytes("VmRSS")

    torch.Tensor.backward = noted  # type: ignore[method-assign]
    register_optimizer_step_post_hook(updated)
    sys.argv[:] = [script]
    runpy.run_path(script, run_name="__main__")
    digest = hashlib.sha256()
    for weight in weights.values():
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
    Path(output).write_text(
        json.dumps(
            {
                "losses": losses,
                "weights": digest.hexdigest(),
                "peak_bytes": max(peaks[FIRST_STEP - 1 :]),
            }
        )
    )


def run(name: str, budget: str | None) -> dict[str, Any]:
    """Train in a fresh process whose allocator gives every large block back."""
    from lowtide.engine.checks.meter import MALLOC_ENVIRONMENT

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        ours = ["-m", "lowtide", "run", "--budget", budget] if budget else []
        subprocess.run(
            [
                sys.executable,
                *ours,
                *("-m", "benchmarks.stacks", "--train", str(SCRIPTS / f"{name}.py")),
                *("--output", str(output)),
            ],
            env={
                **os.environ,
                **MALLOC_ENVIRONMENT,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(
                    [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
                ),
            },
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(output.read_text())


def row(name: str, budget: str | None) -> dict[str, Any]:
    """One stack with and without a budget."""
    library, share = STACKS[name]
    asked = budget or share
    plain, planned = run(name, None), run(name, asked)
    return {
        "name": name,
        "library": library,
        "version": version(library),
        "budget": asked,
        "num_losses": len(plain["losses"]),
        "is_exact": all(plain[k] == planned[k] for k in ("losses", "weights")),
        "peak_bytes": plain["peak_bytes"],
        "planned_peak_bytes": planned["peak_bytes"],
    }


def main() -> None:
    """Run the named stacks, or all, and keep the rows of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stacks", nargs="*", metavar="STACK")
    parser.add_argument("--budget", help="instead of each stack's own share")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        train(asked.train, asked.output)
        return
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = {each["name"]: each for each in known}
    for name in asked.stacks or STACKS:
        if find_spec(STACKS[name][0]) is None:
            print(f"{name}: {STACKS[name][0]} is not installed; its row stays as it is")
            continue
        rows[name] = found = row(name, asked.budget)
        print(json.dumps(found), flush=True)
        ordered = [rows[each] for each in STACKS if each in rows]
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
