"""The fresh process in which one method's real peak is taken.

python -m lowtide.shell.bench_child METHOD [PLAN] -- TARGET...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lowtide.engine.bench.against import measure_peak
from lowtide.engine.bench.methods import other_methods, planned_method
from lowtide.shell.target import build, target_of_words
from lowtide.step.plan import Plan


def main(words: list[str]) -> None:
    """Measure one method and print what was found."""
    cut = words.index("--")
    name, *rest = words[:cut]
    if rest:
        method = planned_method(name, name, Plan.load(Path(rest[0])))
    else:
        (method,) = [m for m in other_methods() if m.name == name]
    example = build(target_of_words(words[cut + 1 :]))
    found = measure_peak(method, example.model, example.batch, example.loss)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
