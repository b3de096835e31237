"""`lowtide doctor`: what lowtide finds on this machine, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from lowtide import __version__
from lowtide.errors import TESTED_TORCH
from lowtide.shell.options import AsJson
from lowtide.shell.page import Page, user_prints_elsewhere
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
_EXTRAS = {"torchvision": "models", "transformers": "models", "matplotlib": "plot"}


def doctor(
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure this machine, for estimates; takes some seconds.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine: torch, devices, solver, cache and settings."""
    page = Page(as_json=as_json)
    if calibrate:
        _calibrate(page)
        return
    with stage("looking around"), user_prints_elsewhere():
        found = examine()
    page.result(found)
    page.pairs([(r["name"], r["found"], r["verdict"]) for r in found["rows"]])
    page.line()
    if not found["ok"]:
        page.line("Something above needs mending before lowtide can train.")
        page.next("pip", "install", "-U", "lowtide")
        raise typer.Exit(1)
    page.next("lowtide", "demo")


def _calibrate(page: Page) -> None:
    """Describe this machine by measuring it; estimates use that from now on."""
    load_api()
    from lowtide.engine.costs import calibrate
    from lowtide.engine.costs.devices import own_file

    with stage("measuring this machine") as advance:
        found = calibrate(progress=advance)
    page.result({**asdict(found), "file": str(own_file())})
    page.pairs(
        [
            ("device", found.name, found.title),
            (
                "memory moved",
                f"{format_bytes(int(found.bandwidth_bytes_per_second))}/s",
            ),
            ("simple ops", f"{found.vector_flops / 1e9:.1f} Gflop/s"),
            *(
                (f"products, {dtype}", f"{rate / 1e9:.1f} Gflop/s")
                for dtype, rate in found.matmul_flops.items()
            ),
            ("start of an op", f"{found.overhead_seconds * 1e6:.1f} us"),
            ("saved", str(own_file())),
        ]
    )
    page.line()
    page.next("lowtide", "profile", "resnet50", "--how", "estimate")


def examine() -> dict[str, Any]:
    """Every check as a row of name, finding and verdict; `ok` if lowtide can run."""
    checks: tuple[Callable[[], list[tuple[str, str, str]]], ...] = (
        _lowtide,
        _torch,
        _devices,
        _solvers,
        _extras,
        _cache,
        _environment,
    )
    rows = [row for check in checks for row in check()]
    return {
        "ok": not any(row[2].startswith("PROBLEM") for row in rows),
        "rows": [
            dict(zip(("name", "found", "verdict"), row, strict=True)) for row in rows
        ],
    }


def _lowtide() -> list[tuple[str, str, str]]:
    python = platform.python_version()
    return [("lowtide", __version__, f"python {python}, {sys.platform}")]


def _torch() -> list[tuple[str, str, str]]:
    tested = f"tested: {TESTED_TORCH}"
    try:
        import torch
    except Exception as error:
        return [("torch", f"cannot be imported ({error})", f"PROBLEM; {tested}")]
    found = torch.__version__
    least, below = TESTED_TORCH.removeprefix("torch>=").split(",<")
    number = _parts(found)
    fits = _parts(least) <= number < _parts(below)
    return [("torch", found, f"ok, {tested}" if fits else f"PROBLEM; {tested}")]


def _parts(text: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in text.split("+")[0].split(".")[:2] if part.isdigit()
    )


def _devices() -> list[tuple[str, str, str]]:
    memory = _memory_bytes()
    size = f", {format_bytes(memory)} of memory" if memory else ""
    rows = [("processor", f"{os.cpu_count()} cores{size}", "ok")]
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for place in range(count):
            facts = torch.cuda.get_device_properties(place)
            rows.append(
                (
                    f"cuda:{place}",
                    f"{facts.name}, {format_bytes(facts.total_memory)}",
                    "written for, not yet tested on a GPU",
                )
            )
        if not count:
            rows.append(("cuda", "none", "not needed"))
    except Exception as error:  # a broken driver must not stop the other checks
        rows.append(("cuda", f"cannot be asked ({error})", "not needed"))
    return rows


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def _solvers() -> list[tuple[str, str, str]]:
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


def _extras() -> list[tuple[str, str, str]]:
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


def _cache() -> list[tuple[str, str, str]]:
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


def _environment() -> list[tuple[str, str, str]]:
    given = [(name, os.environ[name]) for name in ENVIRONMENT if name in os.environ]
    if not given:
        return [("settings", "none in the environment", "ok")]
    return [
        (name, value, "lowtide does nothing" if name.endswith("DISABLE") else "set")
        for name, value in given
    ]
