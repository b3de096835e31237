"""Predicted peaks against the allocator's own count, in a fresh process.

The prediction is made of the ops' results and of their scratch, each measured alone.
Here the whole step runs, and everything that torch's allocator hands out is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.engine.costs.machine import count_allocations

torch.manual_seed(0)
torch.set_num_threads(1)


def blocks(convolution, norm, channels=16, kernel=3, **options):
    pad = options.get("dilation", 1) * (kernel // 2)
    layers = [convolution(3, channels, 1)]
    for _ in range(4):
        layers += [
            convolution(channels, channels, kernel, padding=pad, **options),
            norm(channels),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        y = self.net(x)
        return F.mse_loss(y, torch.zeros_like(y))


flat = (nn.Conv2d, nn.BatchNorm2d)
last = {"memory_format": torch.channels_last}
image = torch.randn(4, 3, 32, 32)
models = {
    "float32": (blocks(*flat), image),
    "bfloat16": (blocks(*flat).bfloat16(), image.bfloat16()),
    "channels last": (blocks(*flat).to(**last), image.to(**last)),
    "both": (blocks(*flat).to(**last).bfloat16(), image.to(**last).bfloat16()),
    "float64": (blocks(*flat).double(), image.double()),
    "dilated": (blocks(*flat, dilation=2), image),
    "one axis": (blocks(nn.Conv1d, nn.BatchNorm1d), torch.randn(4, 3, 1024)),
    "depthwise": (
        blocks(*flat, channels=96, kernel=9, groups=96), torch.randn(1, 3, 6, 6)
    ),
    "unfold": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.Unfold(3), nn.Tanh(), nn.Fold((30, 30), 3)
        ),
        image,
    ),
}
net, x = models[sys.argv[1]]
model = WithLoss(net)
tensors = (*model.parameters(), *model.buffers(), x)
resident = sum(t.untyped_storage().nbytes() for t in tensors)


def step():
    with torch.enable_grad():
        model(x).backward()


def real_peak():
    step()
    model.zero_grad(set_to_none=True)
    return resident + count_allocations(step, torch.device("cpu"))[1]


found = {"eager": real_peak()}
model.zero_grad(set_to_none=True)
lowtide.optimize(model, budget="4 GiB", planner="recompute_all", cache=False)
found["planned"] = real_peak()
found["predicted"] = lowtide.planned(model).plans[0].peak_bytes
print(json.dumps(found))
"""
KINDS = (
    "float32",
    "bfloat16",
    "channels last",
    "both",
    "float64",
    "dilated",
    "one axis",
    "depthwise",
    "unfold",
)
EVERYWHERE = ("bfloat16", "channels last", "depthwise")


# Three kinds everywhere, the others with `make test-slow`.
@pytest.mark.real
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] * (k not in EVERYWHERE)) for k in KINDS],
)
def test_a_step_allocates_what_was_predicted(kind: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind],
        env={**os.environ, "LOWTIDE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    slack = found["planned"] // 100 + 4096
    assert abs(found["predicted"] - found["planned"]) <= slack
    # A budget that eager keeps is not refused.
    assert found["predicted"] <= found["eager"] + slack
