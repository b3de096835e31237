"""`lowtide doctor`: what lowtide finds on this machine, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated

import typer

from lowtide import __version__
from lowtide.errors import TESTED_TORCH
from lowtide.shell.failures import FAILURE
from lowtide.shell.frame import Frame
from lowtide.shell.options import flag
from lowtide.shell.page import user_prints_elsewhere
from lowtide.shell.progress import stage
from lowtide.shell.target import load_api
from lowtide.step.format import format_bytes, format_seconds

ENVIRONMENT = (
    "LOWTIDE_BUDGET",
    "LOWTIDE_PLANNER",
    "LOWTIDE_REPORT",
    "LOWTIDE_CACHE_DIR",
    "LOWTIDE_DISABLE",
)
# A name, what was found, and what to make of it.
Row = tuple[str, str, str]
_EXTRAS = {"torchvision": "models", "transformers": "models", "matplotlib": "plot"}


def doctor(
    frame: Frame,
    calibrate: Annotated[
        bool,
        flag("--calibrate", "Measure this machine, for estimates; takes some seconds."),
    ] = False,
) -> None:
    """Check this machine: torch, devices, solver, cache and settings."""
    if calibrate:
        _calibrate(frame)
        return
    with stage("looking around"), user_prints_elsewhere():
        rows = [row for check in _CHECKS for row in check()]
    ok = not any(verdict.startswith("PROBLEM") for _, _, verdict in rows)
    names = ("name", "found", "verdict")
    data = [dict(zip(names, row, strict=True)) for row in rows]
    frame.result({"ok": ok, "rows": data})
    frame.pairs(rows)
    if not ok:
        frame.line()
        frame.line("Something above needs mending before lowtide can train.")
        frame.next("install", "-U", "lowtide", program="pip")
        raise typer.Exit(FAILURE)
    frame.next("demo")


def _calibrate(frame: Frame) -> None:
    """Describe this machine by measuring it; estimates use that from now on."""
    load_api()
    from lowtide.engine.costs import calibrate
    from lowtide.engine.costs.devices import own_file

    with stage("measuring this machine") as advance:
        found = calibrate(progress=advance)
    if (file := own_file()) is not None:
        frame.saved.append(file)
    frame.result({**asdict(found), "file": str(own_file())})
    bandwidth = format_bytes(int(found.bandwidth_bytes_per_second))
    frame.pairs(
        [
            ("device", found.name, found.title),
            ("memory moved", f"{bandwidth}/s"),
            ("simple ops", f"{found.vector_flops / 1e9:.1f} Gflop/s"),
            *(
                (f"products, {dtype}", f"{rate / 1e9:.1f} Gflop/s")
                for dtype, rate in found.matmul_flops.items()
            ),
            ("start of an op", f"{found.overhead_seconds * 1e6:.1f} us"),
        ]
    )
    frame.next("profile", "resnet50", "--how", "estimate")


def _lowtide() -> list[Row]:
    python = platform.python_version()
    return [("lowtide", __version__, f"python {python}, {sys.platform}")]


def _torch() -> list[Row]:
    tested = f"tested: {TESTED_TORCH}"
    try:
        from lowtide.engine.machine import TORCH_VERSION as found
    except Exception as error:
        return [("torch", f"cannot be imported ({error})", f"PROBLEM; {tested}")]
    least, below = TESTED_TORCH.removeprefix("torch>=").split(",<")
    number = _parts(found)
    fits = _parts(least) <= number < _parts(below)
    return [("torch", found, f"ok, {tested}" if fits else f"PROBLEM; {tested}")]


def _parts(text: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in text.split("+")[0].split(".")[:2] if part.isdigit()
    )


def _devices() -> list[Row]:
    memory = _memory_bytes()
    size = f", {format_bytes(memory)} of memory" if memory else ""
    rows = [("processor", f"{os.cpu_count()} cores{size}", "ok")]
    try:
        from lowtide.engine.machine import gpus

        for place, (name, num_bytes) in enumerate(found := gpus()):
            size = format_bytes(num_bytes)
            verdict = "written for, not yet tested on a GPU"
            rows.append((f"cuda:{place}", f"{name}, {size}", verdict))
        if not found:
            rows.append(("cuda", "none", "not needed"))
    except Exception as error:  # a broken driver must not stop the other checks
        rows.append(("cuda", f"cannot be asked ({error})", "not needed"))
    return rows


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def _solvers() -> list[Row]:
    try:
        import highspy

        solver = highspy.Highs()
        rows = [("solver", f"highs {solver.version()}", "ok")]
    except Exception as error:
        rows = [
            (
                "solver",
                f"highs cannot be used ({str(error).splitlines()[0]})",
                "plans are found without bounds from it: pip install highspy",
            )
        ]
    if find_spec("ortools") is not None:
        rows.append(
            (
                "ortools",
                _installed("ortools"),
                "cannot be imported beside highs in one process; lowtide does not",
            )
        )
    return rows


def _extras() -> list[Row]:
    return [
        (name, _installed(name), "ok")
        if find_spec(name)
        else (name, "not installed", f"optional: pip install 'lowtide[{extra}]'")
        for name, extra in _EXTRAS.items()
    ]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "installed"


def _cache() -> list[Row]:
    try:
        from lowtide.engine.costs.cache import CostCache, cache_directory
    except Exception:  # torch cannot be imported, which another row says
        return []
    folder = cache_directory()
    if folder is None:
        return [("cache", "no home directory", "nothing is kept: LOWTIDE_CACHE_DIR")]
    if not os.path.exists(folder):
        return [("cache", str(folder), "not there yet; made when first needed")]
    if not os.access(folder, os.W_OK):
        return [("cache", str(folder), "may not be written to, so nothing is kept")]
    ages = CostCache().ages()
    oldest = f", the oldest of {format_seconds(max(ages))} ago" if ages else ""
    return [("cache", str(folder), f"{len(ages)} op times{oldest}")]


def _environment() -> list[Row]:
    given = [(name, os.environ[name]) for name in ENVIRONMENT if name in os.environ]
    if not given:
        return [("settings", "none in the environment", "ok")]
    return [
        (name, value, "lowtide does nothing" if name.endswith("DISABLE") else "set")
        for name, value in given
    ]


_CHECKS: tuple[Callable[[], list[Row]], ...] = (
    _lowtide,
    _torch,
    _devices,
    _solvers,
    _extras,
    _cache,
    _environment,
)
