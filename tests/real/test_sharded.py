"""Parameters that are sharded over processes are never touched by a dry run."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os
import torch
from torch import nn
import torch.distributed as dist
import lowtide

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29534")
os.environ.update(RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (1,))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)])
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


plain, planned = build(), build()
lowtide.optimize(planned, budget="1 GiB", planner="recompute_all")
x = torch.randn(4, 16)
for _ in range(3):
    for model in (plain, planned):
        model.zero_grad()
        model(x).square().sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-0.1)
for p, q in zip(plain.parameters(), planned.parameters(), strict=True):
    assert type(q.to_local()) is torch.Tensor, type(q.to_local())
    assert torch.equal(p.full_tensor(), q.full_tensor())
assert lowtide.planned(planned).watch.backwards == 9
dist.destroy_process_group()
print("equal")
"""


@pytest.mark.real
def test_a_sharded_model_trains_to_the_same_bits():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=250
    )
    assert done.stdout.strip() == "equal", done.stderr[-3000:]
