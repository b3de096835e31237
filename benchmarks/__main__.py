"""Run the benchmarks one after another, each in its own process.

python -m benchmarks                 # all of them; with the corpus, hours on two cores
python -m benchmarks peaks profiles  # some
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; returns how many failed."""
    known = sorted(p.stem for p in HERE.glob("[a-z]*.py"))
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(known)}")
        return 2
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        failed += subprocess.call([sys.executable, HERE / f"{name}.py"]) != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
