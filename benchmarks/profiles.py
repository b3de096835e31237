"""How far a profile can be trusted, and what it costs.

    python benchmarks/profiles.py                 # the four models below
    python benchmarks/profiles.py gpt2 --threads 1
    python benchmarks/profiles.py --large         # also Llama-3 70B, by estimate

Prints five tables and writes `results/profiles.json` next to this file:

* the sum of the measured op times against the measured step, run eagerly ("step") and
  run from its graph as lowtide does ("graph"). A sum above the step means that ops are
  measured colder than the step finds them, as with many small ops; what a step has
  beyond the sum lies between ops: views, Python, the autograd engine, fresh pages,
* the baseline peak as predicted, as an eager ledger sees it, and as the operating
  system does in a fresh process,
* the time a profile takes, with an empty cache and with a full one,
* an estimate from this machine's calibrated description against the measurement,
* with --large, a model that does not fit on this machine.

On one thread times are those that the thread computes, so other work on the machine
does not lengthen them; on several threads they are wall times. Steps and ops are both
medians of a few.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "profiles.json"
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 4, "image": 160},
    "densenet121": {"batch": 4, "image": 160},
    "gpt2": {"batch": 2, "sequence": 128},
    "vit": {"batch": 4},
}
LARGE = {"size": "70b", "batch": 1, "sequence": 8192, "dtype": "bfloat16"}
MIB = 2.0**20


def main() -> None:
    """Run the chosen models, print the tables, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--system-peak", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    if given.system_peak:
        print(system_peak_here(given.models[0]))
        return
    # Child processes measure with as many.
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    results: dict[str, Any] = {"threads": given.threads, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOWTIDE_CACHE_DIR"] = folder
        results["calibration"] = calibration()
        results["models"] = {name: one_model(name) for name in given.models}
    show(results["models"])
    if given.large:
        results["large"] = large()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def calibration() -> dict[str, Any]:
    """Describe this machine, and say how long that took."""
    from lowtide.engine.costs.calibrate import calibrate

    begin = time.perf_counter()
    device = calibrate()
    seconds = time.perf_counter() - begin
    note(f"calibrated {device.title} in {seconds:.1f} s")
    return {"seconds": seconds, "title": device.title, "source": device.source}


def one_model(name: str) -> dict[str, Any]:
    """Everything about one model."""
    import lowtide
    from lowtide import models
    from lowtide.engine.costs.ledger import ledger

    note(f"{name}: building")
    example = models.build(name, **MODELS.get(name, {}))
    step = step_of(example)
    note(f"{name}: profiling")

    def profile(how: str) -> Any:
        return lowtide.profile(
            example.model, example.batch, loss=example.loss, how=how, name=name
        )

    before = step_samples(step, example.model)
    profile("estimate")  # imports and first uses are nobody's cost
    estimated, capture_seconds = timed(lambda: profile("estimate"))
    measured, cold_seconds = timed(lambda: profile("measure"))
    _, warm_seconds = timed(lambda: profile("measure"))
    note(f"{name}: running")
    step_seconds = statistics.median(before + step_samples(step, example.model))
    graph_seconds = graph_step_seconds(measured, example)
    example.model.zero_grad(set_to_none=True)
    book = ledger(step, modules=[example.model], batch=example.batch)
    example.model.zero_grad(set_to_none=True)
    system = system_peak(name)
    return {
        "options": MODELS.get(name, {}),
        "ops": len(measured.baseline),
        "step_seconds": step_seconds,
        "graph_seconds": graph_seconds,
        "op_seconds": measured.baseline_seconds,
        "spread": spread(measured),
        "capture_seconds": capture_seconds,
        "cold_seconds": cold_seconds,
        "warm_seconds": warm_seconds,
        "predicted_bytes": measured.eager_peak_bytes,
        "ledger_bytes": book.peak_bytes,
        "system_bytes": book.resident_bytes + system if system else None,
        **against_estimate(measured, estimated),
    }


def step_of(example: Any) -> Callable[[], None]:
    """The eager training step of an example."""
    from lowtide.engine.training import default_loss

    def step() -> None:
        batch = example.batch
        if isinstance(batch, dict):
            output = example.model(**batch)
        elif isinstance(batch, tuple):
            output = example.model(*batch)
        else:
            output = example.model(batch)
        (example.loss or default_loss)(output).backward()

    return step


def system_peak(name: str) -> int:
    """Bytes that the operating system sees a step take, in a fresh process."""
    from lowtide.engine.checks.meter import MALLOC_ENVIRONMENT

    command = [sys.executable, __file__, name, "--system-peak"]
    command += ["--threads", os.environ["OMP_NUM_THREADS"]]
    environment = {**os.environ, **MALLOC_ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0


def system_peak_here(name: str) -> int:
    """The same in this process, after a first step has set everything up."""
    from lowtide import models
    from lowtide.engine.checks.meter import rss_peak

    example = models.build(name, **MODELS.get(name, {}))
    step = step_of(example)
    step()
    return rss_peak(step, [example.model])


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the seconds it took, without waiting for a busy core if it can."""
    clock = busy_clock()
    begin = clock()
    result = run()
    return result, clock() - begin


def busy_clock() -> Callable[[], float]:
    """Seconds that this process computes on one thread, or wall time on several."""
    import torch

    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def step_samples(step: Callable[[], None], model: Any, repeats: int = 4) -> list[float]:
    """Seconds of a few steps, after one to warm up."""
    samples: list[float] = []
    for _ in range(repeats + 1):
        model.zero_grad(set_to_none=True)
        samples.append(timed(step)[1])
    # Gradients left behind would be part of the next profile.
    model.zero_grad(set_to_none=True)
    return samples[1:]


def graph_step_seconds(profile: Any, example: Any) -> float:
    """Seconds of the step run from its graph as lowtide does, with everything kept."""
    import lowtide
    from lowtide import planners
    from lowtide.engine.api import restore

    plan = planners.load("keep_all").plan(profile, None)
    lowtide.apply(example.model, plan)
    try:
        return statistics.median(step_samples(step_of(example), example.model))
    finally:
        restore(example.model)


def spread(step: Any) -> float:
    """The spread of op times, weighted by time."""
    ops = [step.ops[i] for i in step.baseline]
    return sum(op.seconds * op.spread for op in ops) / sum(op.seconds for op in ops)


def against_estimate(measured: Any, estimated: Any) -> dict[str, float]:
    """How an estimate orders the distinct ops, and what it says of the whole."""
    pairs = {
        measured.ops[i].signature: (measured.ops[i].seconds, estimated.ops[i].seconds)
        for i in measured.baseline
        if measured.ops[i].opens < 0
    }
    real, guessed = zip(*pairs.values(), strict=True)
    return {
        "distinct": len(pairs),
        "rank_correlation": rank_correlation(list(real), list(guessed)),
        "estimated_seconds": estimated.baseline_seconds,
    }


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: 1 if both order the same way."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def large() -> dict[str, Any]:
    """Llama-3 70B on an H100 that is not there, in a process of its own."""
    code = (
        "import json, resource, time, torch, lowtide\n"
        "from lowtide import models\n"
        "from lowtide.step.analysis.summary import format_profile\n"
        "from torch._subclasses import FakeTensorMode\n"
        "begin = time.perf_counter()\n"
        "with FakeTensorMode(allow_non_fake_inputs=True):\n"
        f"    example = models.build('llama', **{LARGE!r})\n"
        "step = lowtide.profile(example.model, example.batch, loss=example.loss,\n"
        "    how='estimate', device='h100', name='llama-3-70b')\n"
        "seconds = time.perf_counter() - begin\n"
        "print(format_profile(step, floor=False))\n"
        "rows = [r for r in step.by_module(2) if r.count == 80]\n"
        "used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "print(json.dumps({'seconds': seconds, 'ops': len(step.ops),\n"
        "    'peak_bytes': step.baseline_peak_bytes,\n"
        "    'identical_layers': bool(rows) and all(r.identical for r in rows),\n"
        "    'process_bytes': used}))\n"
    )
    note("llama-3 70b: estimating for an h100")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:])
        return {"failed": done.stderr.strip().splitlines()[-1]}
    *text, last = done.stdout.splitlines()
    found = json.loads(last)
    print("\n".join(["", "Llama-3 70B, 8192 tokens, bfloat16, on an H100", *text, ""]))
    print(
        f"took {found['seconds']:.0f} s (at most 180) and "
        f"{found['process_bytes'] / 2**30:.2f} GiB (at most 4); layers "
        f"{'are' if found['identical_layers'] else 'are not'} recognised as identical"
    )
    return found


def show(models: dict[str, dict[str, Any]]) -> None:
    """Print the tables."""
    table(
        "Sum of op times against the step (within 10 %)",
        ("model", "ops", "op times s", "step s", "ratio", "graph s", "ratio", "spread"),
        [
            (
                name,
                m["ops"],
                f"{m['op_seconds']:.3f}",
                f"{m['step_seconds']:.3f}",
                f"{m['op_seconds'] / m['step_seconds']:.3f}",
                f"{m['graph_seconds']:.3f}",
                f"{m['op_seconds'] / m['graph_seconds']:.3f}",
                f"{100 * m['spread']:.1f} %",
            )
            for name, m in models.items()
        ],
    )
    table(
        "Baseline peak in MiB (within 3 % + 4 MiB of each other)",
        ("model", "predicted", "ledger", "system", "pred/ledger", "pred/system"),
        [
            (
                name,
                f"{m['predicted_bytes'] / MIB:.1f}",
                f"{m['ledger_bytes'] / MIB:.1f}",
                f"{(m['system_bytes'] or 0) / MIB:.1f}",
                f"{m['predicted_bytes'] / m['ledger_bytes']:.4f}",
                f"{m['predicted_bytes'] / (m['system_bytes'] or 1):.4f}",
            )
            for name, m in models.items()
        ],
    )
    table(
        "Seconds to profile (cold at most 3 steps + 10 s; warm 2 s + capture)",
        ("model", "capture", "cold", "allowed", "warm", "allowed"),
        [
            (
                name,
                f"{m['capture_seconds']:.1f}",
                f"{m['cold_seconds'] - m['capture_seconds']:.1f} + capture",
                f"{3 * m['step_seconds'] + 10:.1f}",
                f"{m['warm_seconds']:.1f}",
                f"{m['capture_seconds'] + 2:.1f}",
            )
            for name, m in models.items()
        ],
    )
    table(
        "Estimate against measurement (rank at least 0.9, total within 25 %)",
        ("model", "distinct", "rank", "estimated s", "measured s", "ratio"),
        [
            (
                name,
                m["distinct"],
                f"{m['rank_correlation']:.3f}",
                f"{m['estimated_seconds']:.3f}",
                f"{m['op_seconds']:.3f}",
                f"{m['estimated_seconds'] / m['op_seconds']:.3f}",
            )
            for name, m in models.items()
        ],
    )


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table with a title."""
    cells = [list(map(str, head)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    print(f"\n{title}")
    for row in cells:
        first, *rest = (cell for cell in zip(row, widths, strict=True))
        line = [f"{first[0]:<{first[1]}s}", *(f"{c:>{w}s}" for c, w in rest)]
        print("  ".join(line))


def note(text: str) -> None:
    """Say what is going on, beside the results."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{text} ({used:.1f} GiB so far)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
