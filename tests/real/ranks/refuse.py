"""One of two ranks cannot plan, and neither trains. Run by torchrun."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lowtide


def main() -> None:
    dist.init_process_group("gloo")
    rank, refusing = dist.get_rank(), int(sys.argv[1])
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    budget = "100 B" if rank == refusing else "1 MiB"
    lowtide.optimize(model, budget=budget, planner="recompute_all")
    wrapper = DistributedDataParallel(model)
    try:
        wrapper(torch.ones(2, 8)).sum().backward()
    except lowtide.LowtideError as error:
        found = type(error).__name__, str(error)
        print(json.dumps({"rank": rank, "error": found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
