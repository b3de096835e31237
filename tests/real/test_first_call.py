"""The first call, in which ops are measured, keeps the budget as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.engine.meter import MALLOC_ENVIRONMENT
from tests.shell import environment

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
from benchmarks.zoo.allocated import Allocated, start_counting

if __name__ == "__main__":
    start_counting()
    import torch
    from torch import nn
    import lowtide
    from lowtide.engine.planning import Planning

    torch.manual_seed(0)

    def convolutions():
        layers = [nn.Conv2d(3, 16, 3, padding=1)]
        for _ in range(6):
            layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
        return nn.Sequential(*layers), torch.randn(16, 3, 64, 64)

    def products():
        layers = []
        for _ in range(8):
            layers += [nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)]
        return nn.Sequential(*layers), torch.randn(4096, 128)

    net, x = {"convolutions": convolutions, "products": products}[sys.argv[1]]()

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).square().mean()

    model = Loss()
    there = (*model.parameters(), *model.buffers(), x)
    resident = sum(t.untyped_storage().nbytes() for t in there)

    class Peak:
        # What is allocated, but for what planners need for their own work.
        def __init__(self):
            self.before, self.counted = 0, Allocated()
            search = Planning.search

            def aside(*args, **kwargs):
                self.before = max(self.before, self.counted.rise_bytes())
                plan = search(*args, **kwargs)
                self.counted.counter.corpus_reset()
                return plan

            Planning.search = aside

        def rise_bytes(self):
            return max(self.before, self.counted.rise_bytes())

    def peak():
        model.zero_grad()
        counted = Peak()
        model(x).backward()
        return resident + counted.rise_bytes()

    found = {"eager": [peak() for _ in range(2)]}
    lowtide.optimize(model, budget="70%")
    found["planned"] = [peak() for _ in range(3)]
    found["budget"] = lowtide.planned(model).plans[-1].budget_bytes
    print(json.dumps(found))
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutions", "products"])
def test_the_first_call_keeps_the_budget(name: str, tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), name],
        env={
            **environment(),
            **MALLOC_ENVIRONMENT,
            "LOWTIDE_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": f"{ROOT}:{environment().get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found["planned"]) <= 1.01 * found["budget"] + (1 << 20), found
