"""What the process has allocated, as the C library sees it.

`allocated.c` is compiled once and loaded before everything else, so a program that
wants to count starts itself anew (`start_counting`). Where there is no compiler or no
glibc, nothing is counted and every answer is `None`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("allocated.c")


def start_counting() -> None:
    """Start this program anew with the counter loaded, unless it is."""
    if _counter() is not None or (library := _built()) is None:
        return
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, sys.orig_argv)


def _built() -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux" or "LD_PRELOAD" in os.environ:
        return None
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = Path(tempfile.gettempdir()) / f"lowtide-allocated-{version}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", made, SOURCE]
        if subprocess.run(command, check=False).returncode:
            return None
        made.replace(library)
    return library


@cache
def _counter() -> ctypes.CDLL | None:
    process = ctypes.CDLL(None)
    if not hasattr(process, "corpus_live"):
        return None
    process.corpus_live.restype = process.corpus_peak.restype = ctypes.c_longlong
    return process


class Allocated:
    """How far the allocated bytes rose since this was made."""

    def __init__(self) -> None:
        self.counter = _counter()
        self.base = 0
        if self.counter is not None:
            self.counter.corpus_reset()
            self.base = self.counter.corpus_live()

    def rise_bytes(self) -> int | None:
        """The highest rise so far, or `None` if nothing counts."""
        if self.counter is None:
            return None
        return self.counter.corpus_peak() - self.base
