"""Two ranks train a divided model, with and without a plan. Run by torchrun."""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import lowtide
from lowtide.engine.capture.tensors import bytes_in
from lowtide.engine.costs.machine import start_counting, stop_counting
from lowtide.engine.graphs.outside import residents_of
from tests.real.ranks.both_ways import compare

WIDTH = 32
HALVES = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()


def build(case: str) -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    options: dict[str, Any] = {}
    if case in ("tensor parallel", "sequence parallel", "both"):
        names = ("dp", "tp")
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=names)
        plan: Any = SEQUENCE if case == "sequence parallel" else HALVES
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], plan)
        options["mesh"] = mesh["dp"]
    if case == "mixed precision":
        types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        options["mp_policy"] = MixedPrecisionPolicy(**types)
    if case == "without resharding":
        options["reshard_after_forward"] = False
    if "parallel" in case:
        return model
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def train(case: str, *, planned: bool, seen: dict[str, Any]) -> list[Any]:
    model = build(case)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if planned:
        asked: dict[str, Any] = {"budget": "64 MiB", "planner": "recompute_all"}
        lowtide.optimize(model, optimizer=optimizer, **asked)
    torch.manual_seed(1)
    peaks: list[int] = []
    for _ in range(5):
        x = torch.randn(64, 8, WIDTH)
        there = bytes_in(residents_of([model], optimizer, x))
        start_counting()
        model(x).backward()
        peaks.append(max(accumulate(stop_counting()[0], initial=there)))
        optimizer.step()
        optimizer.zero_grad()
    # A thread of gloo may let go of what was exchanged only after the step has gone on.
    seen["peaks"].append(min(peaks[2:]))
    call = lowtide.planned(model)
    if call is not None:
        seen["backwards"] = call.watch.backwards
        seen["promised"] = call.planning.promised_bytes
        seen["left"] = call.watch.left
        seen["plans"] = len(call.plans)
    states = [v for state in optimizer.state.values() for v in state.values()]
    values = [*model.parameters(), *states]
    return [v.to_local() if isinstance(v, DTensor) else v for v in values]


def main() -> None:
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        seen: dict[str, Any] = {"case": case, "rank": dist.get_rank(), "peaks": []}
        compare(train, case, seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
