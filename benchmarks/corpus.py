"""Hundreds of models that nobody here chose, trained with and without lowtide.

    python benchmarks/corpus.py                     # what is not known of this source
    python benchmarks/corpus.py --only 'timm/*'     # some
    python benchmarks/corpus.py --again             # also what is known
    python benchmarks/corpus.py --missing           # what no version has been run on
    python benchmarks/corpus.py --failed            # what did not come out well
    python benchmarks/corpus.py --sample            # the 25 of `make test-slow`
    python benchmarks/corpus.py --show              # the table, nothing is run

Small models of timm, torchvision, transformers, diffusers and peft with random weights,
and the oddities of `benchmarks/zoo/oddities.py`, each in a process of its own with one
thread. Four optimizer steps are run without lowtide and four under a budget between
floor and eager's peak. Losses, gradients, parameters, buffers and random streams are
compared bit by bit. What the last step needs, by lowtide's ledger and as the C library
allocated it, is compared with the budget. Results go to
`benchmarks/results/corpus.json` after each model, so an interrupted run goes on where
it was.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.zoo.allocated import start_counting
from benchmarks.zoo.verdict import Record, reason_of, table, verdict_of

RESULTS = Path(__file__).parent / "results" / "corpus.json"
SOURCE = Path(__file__).parents[1] / "src" / "lowtide"
# Those that decide how a step runs. Reports, the shell and trainers do not.
ROOMS = ("chains", "engine", "planners", "step")
# A process that waits for something that never comes uses no CPU time.
PATIENCE = 20

# Each for another reason: how it is captured, what it computes, what it returns.
SAMPLE = """
timm/resnet10t timm/convnext_atto_rms timm/mobilevit_xxs timm/test_vit
torchvision/shufflenet_v2_x0_5 torchvision/deeplabv3_mobilenet_v3_large
torchvision/raft_small transformers/gpt2 transformers/llama transformers/t5
transformers/mixtral transformers/wav2vec2 transformers/clip diffusers/UNet2DModel
diffusers/AutoencoderKL diffusers/FluxTransformer2DModel peft/lora peft/prefix_tuning
odd/lstm odd/mixture_of_experts odd/tied_weights odd/checkpointed odd/complex_numbers
odd/dropout odd/lazy_modules
""".split()


def main() -> int:
    """Run what is asked for, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="names that match this pattern")
    parser.add_argument("--sample", action="store_true", help="only the fixed sample")
    parser.add_argument("--again", action="store_true", help="also what is known")
    parser.add_argument("--missing", action="store_true", help="only what has no row")
    parser.add_argument("--failed", action="store_true", help="only what failed")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument(
        "--timeout", type=float, default=120, help="CPU seconds for each"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="the results' file")
    given = parser.parse_args()
    # Read by OpenMP when torch is loaded, and by hubs that nothing is to be asked of.
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    start_counting()
    preload()
    from benchmarks.zoo.cases import all_models

    names = [n for n in all_models() if fnmatch(n, given.only)]
    if given.sample:
        names = [n for n in names if n in SAMPLE]
    source = fingerprint()
    known = read(given.to)
    stale = [n for n in names if known.get(n, {}).get("source") != source]
    if given.missing:
        stale = [n for n in names if n not in known]
    if given.failed:
        stale = [n for n in names if n in known and reason_of(known[n])]
    wanted = [] if given.show else names if given.again else stale
    # In no order, so that a run that is ended early has seen something of everything.
    random.Random(0).shuffle(wanted)
    for name, record in run(wanted, given.jobs, given.timeout):
        known[name] = {"source": source, **record}
        write(given.to, {n: known[n] for n in all_models() if n in known})
        print(line_of(name, record), flush=True)
    shown = {n: known[n] for n in names if n in known}
    for cells in table(shown):
        print(f"{cells[0]:12}" + "".join(f"{cell:>13}" for cell in cells[1:]))
    return 0


def preload() -> None:
    """Load the libraries once; the processes of the models are forked from this one."""
    from lowtide.models._libraries import torchvision_models

    torchvision_models()
    for name in "benchmarks.zoo.trial transformers timm diffusers peft".split():
        import_module(name)
    # What is loaded by now is no garbage; each step looks for some.
    gc.collect()
    gc.freeze()


def fingerprint() -> str:
    """Tells one version of what decides how a step runs from another."""
    found = hashlib.sha256()
    paths = (path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))
    for path in sorted(paths):
        found.update(f"{path.relative_to(SOURCE)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


@dataclass
class Job:
    """A model's process."""

    name: str
    process: BaseProcess
    answer: Path
    started: float


def run(names: list[str], jobs: int, timeout: float) -> Iterator[tuple[str, Record]]:
    """Each model's record, as soon as it is known."""
    fork = multiprocessing.get_context("fork")
    waiting = list(reversed(names))
    running: list[Job] = []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop()
                answer = Path(folder) / name.replace("/", "-")
                process = fork.Process(target=child, args=(name, answer, timeout))
                process.start()
                running.append(Job(name, process, answer, time.monotonic()))
            time.sleep(0.05)
            for job in list(running):
                is_late = time.monotonic() - job.started > PATIENCE * timeout
                if job.process.is_alive() and not is_late:
                    continue
                end(job.process)
                running.remove(job)
                yield job.name, answer_of(job, timeout)


def end(process: BaseProcess) -> None:
    """End a process and those it started."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def answer_of(job: Job, timeout: float) -> Record:
    """What a process that has ended found."""
    if job.answer.exists():
        return json.loads(job.answer.read_text())
    if job.process.exitcode in (-signal.SIGKILL, -signal.SIGXCPU):
        return {"no_end": f"no end in {timeout:.0f} s"}
    log = job.answer.with_suffix(".log")
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or [""]
    return {"crash": f"exit code {job.process.exitcode}: {last[0][:200]}"}


def child(name: str, answer: Path, timeout: float) -> None:
    """In its own process: the trial of one model."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (int(timeout), int(timeout) + 5))
    with answer.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    from benchmarks.zoo.cases import all_models
    from benchmarks.zoo.trial import trial

    build: Callable[[], Any] = all_models()[name]
    record = trial(build)
    made = answer.with_suffix(".part")
    made.write_text(json.dumps(record))
    made.replace(answer)


def read(path: Path) -> dict[str, Record]:
    """What is known of each model."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, known: dict[str, Record]) -> None:
    """Save what is known and what is to be said of it, one line for each model."""
    lines: list[str] = []
    for name, record in known.items():
        judged = record | {"verdict": verdict_of(record), "reason": reason_of(record)}
        lines.append(f"{json.dumps(name)}: {json.dumps(judged)}")
    made = path.with_suffix(".part")
    made.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    made.replace(path)


def line_of(name: str, record: Record) -> str:
    """One model as a line."""
    reason = reason_of(record)[:150]
    return (
        f"{verdict_of(record):12}{record.get('seconds', 0):6.1f} s  {name:44} {reason}"
    )


if __name__ == "__main__":
    sys.exit(main())
