"""`lowtide doctor`: what lowtide finds on this machine, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide import __version__
from lowtide.errors import TESTED_TORCH
from lowtide.shell.failures import FAILURE, NOT_VERIFIED
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import flag, saved_as
from lowtide.shell.progress import stage
from lowtide.shell.target import load_api
from lowtide.step.format import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from lowtide.engine.jobs.acceptance import Trial

_SETTINGS = ("BUDGET", "PLANNER", "REPORT", "CACHE_DIR", "DISABLE")
# A name, what was found, and what to make of it.
Row = tuple[str, str, str]
_EXTRAS = {"torchvision": "models", "transformers": "models", "matplotlib": "plot"}
_CALIBRATE = "Measure this machine, for estimates; takes a few seconds."
_FULL = "Train small models here with and without a plan; takes minutes."
_ANSWER = "With --full: where to write what was found."
_ANSWERS = Path("lowtide-doctor.json")


def doctor(
    frame: SavingFrame,
    calibrate: Annotated[bool, flag("--calibrate", _CALIBRATE)] = False,
    full: Annotated[bool, flag("--full", _FULL)] = False,
    output: Annotated[Path, saved_as(_ANSWER)] = _ANSWERS,
) -> None:
    """Check this machine: torch, devices, solver, cache and settings."""
    if full:
        _try(frame, output)
        return
    if calibrate:
        _calibrate(frame)
        return
    with stage("looking around"):
        checks = (_torch(), _devices(), _packages(), _cache(), _environment())
        rows = [row for rows in checks for row in rows]
    ok = not any(verdict.startswith("PROBLEM") for _, _, verdict in rows)
    names = ("name", "found", "verdict")
    data = [dict(zip(names, row, strict=True)) for row in rows]
    frame.result({"ok": ok, "rows": data})
    frame.pairs(rows)
    if not ok:
        frame.line()
        frame.line("Fix what is marked PROBLEM before training with lowtide.")
        frame.next("install", "-U", "lowtide", program="pip")
        raise typer.Exit(FAILURE)
    frame.next("demo")


def _try(frame: SavingFrame, output: Path) -> None:
    """The acceptance run: one table, and one file to send to whoever asks for it."""
    frame.will_save(output, ".json")
    load_api()
    from lowtide.engine.costs.calibrate import calibrate
    from lowtide.engine.jobs.acceptance import trials

    with stage("measuring this machine") as advance:
        machine = calibrate(progress=advance)
    with stage("training small models both ways") as advance:
        found = list(trials(advance))
    data = {
        "lowtide": "acceptance",
        "ok": all(trial.ok for trial in found),
        "machine": asdict(machine),
        "found": [*_torch(), *_devices(), *_packages()],
        "trials": [{"ok": trial.ok, **asdict(trial)} for trial in found],
    }
    frame.save(output, data)
    frame.result(data)
    headings = ("case", "<device", "budget", "<bits", "peak", "predicted", "time")
    frame.table((*headings, "predicted"), [_row_of(trial) for trial in found])
    wrong = [trial for trial in found if not trial.ok]
    for trial in wrong:
        reason = trial.failure or trial.differences[0]
        frame.line(f"{trial.case}, {trial.device}, {trial.budget}: {reason}")
    frame.next("demo")
    if wrong:
        raise typer.Exit(NOT_VERIFIED)


def _row_of(trial: Trial) -> tuple[str, ...]:
    cells = [trial.case, trial.device, trial.budget]
    if trial.failure:
        return (*cells, "FAILED", "", "", "", "")
    return (
        *cells,
        "equal" if trial.ok else "DIFFERENT",
        format_bytes(trial.measured_peak_bytes),
        format_bytes(trial.predicted_peak_bytes),
        format_percent(trial.measured_overhead, signed=True),
        format_percent(trial.predicted_overhead, signed=True),
    )


def _calibrate(frame: SavingFrame) -> None:
    """Describe this machine by measuring it; estimates use that from now on."""
    load_api()
    from lowtide.engine.costs.calibrate import calibrate
    from lowtide.engine.costs.devices import own_file

    with stage("measuring this machine") as advance:
        found = calibrate(progress=advance)
    if (file := own_file()) is not None:
        frame.saved.append(file)
    frame.result({**asdict(found), "file": str(own_file())})
    bandwidth = format_bytes(int(found.bandwidth_bytes_per_second))
    products = [
        (f"products, {dtype}", f"{rate / 1e9:.1f} Gflop/s")
        for dtype, rate in found.matmul_flops.items()
    ]
    frame.pairs(
        [
            ("device", found.name, found.title),
            ("memory moved", f"{bandwidth}/s"),
            ("simple ops", f"{found.vector_flops / 1e9:.1f} Gflop/s"),
            *products,
            ("start of an op", f"{found.overhead_seconds * 1e6:.1f} us"),
        ]
    )
    frame.next("profile", "resnet50", "--how", "estimate")


def _torch() -> Iterator[Row]:
    yield "lowtide", __version__, f"python {platform.python_version()}, {sys.platform}"
    tested = f"tested: {TESTED_TORCH}"
    try:
        from lowtide.engine.costs.machine import TORCH_VERSION as found
        from lowtide.engine.seam import is_tested
    except Exception as error:
        yield "torch", f"cannot be imported ({error})", f"PROBLEM; {tested}"
        return
    told = "ok" if is_tested(found) else "first steps will be verified"
    yield "torch", found, f"{told}, {tested}"


def _devices() -> Iterator[Row]:
    memory = format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    yield "processor", f"{os.cpu_count()} cores, {memory} of memory", "ok"
    try:
        from lowtide.engine.costs.machine import gpus

        for place, (name, num_bytes) in enumerate(found := gpus()):
            verdict = "written for, not yet tested on a GPU"
            yield f"cuda:{place}", f"{name}, {format_bytes(num_bytes)}", verdict
        if not found:
            yield "cuda", "none", "not needed"
    except Exception as error:  # a broken driver must not stop the other checks
        yield "cuda", f"cannot be asked ({error})", "not needed"


def _packages() -> Iterator[Row]:
    try:
        import highspy

        yield "solver", f"highs {highspy.Highs().version()}", "ok"
    except Exception as error:
        reason = str(error).splitlines()[0]
        advice = "plans are found without bounds from it: pip install highspy"
        yield "solver", f"highs cannot be used ({reason})", advice
    if found := _installed("ortools"):
        advice = "cannot be imported beside highs in one process; lowtide does not"
        yield "ortools", found, advice
    for name, extra in _EXTRAS.items():
        found, advice = _installed(name), f"optional: pip install 'lowtide[{extra}]'"
        yield name, found or "not installed", "ok" if found else advice


def _installed(name: str) -> str:
    """The version of a package, or nothing if it cannot be imported."""
    try:
        return version(name) if find_spec(name) else ""
    except PackageNotFoundError:
        return "installed"


def _cache() -> Iterator[Row]:
    try:
        from lowtide.engine.costs.cache import CostCache, cache_directory
    except Exception:  # torch cannot be imported, which another row says
        return
    folder = cache_directory()
    if folder is None:
        yield "cache", "no home directory", "nothing is kept: set LOWTIDE_CACHE_DIR"
    elif not os.path.exists(folder):
        yield "cache", str(folder), "not there yet; made when first needed"
    elif not os.access(folder, os.W_OK):
        yield "cache", str(folder), "may not be written to, so nothing is kept"
    else:
        ages = CostCache().ages()
        oldest = f", the oldest {format_seconds(max(ages))} old" if ages else ""
        yield "cache", str(folder), f"{len(ages)} op times{oldest}"


def _environment() -> Iterator[Row]:
    given = [f"LOWTIDE_{s}" for s in _SETTINGS if f"LOWTIDE_{s}" in os.environ]
    for name in given:
        verdict = "lowtide does nothing" if name.endswith("DISABLE") else "set"
        yield name, os.environ[name], verdict
    if not given:
        yield "settings", "none in the environment", "ok"
