"""Three ranks train under DDP, and something happens to one of them."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.engine.ranks import company

company._SILENCE = 4.0


class Net(nn.Module):
    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x)
        if self.case == "raises":
            raise ValueError("a bad batch")
        if self.case == "another graph":
            torch._dynamo.graph_break()
            x = x.sin()
        return x.square().mean()


def main() -> None:
    case, unlucky = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    is_unlucky = dist.get_rank() == unlucky
    torch.manual_seed(0)
    model = Net(case if is_unlucky else "")
    wrapper = DistributedDataParallel(model)
    said: dict[str, Any] = {"rank": dist.get_rank()}
    try:
        lowtide.optimize(wrapper, budget="1 MiB", planner="recompute_all")
        for number in range(4):
            if is_unlucky and case == f"killed in step {number}":
                os.kill(os.getpid(), signal.SIGKILL)
            if is_unlucky and case == "leaves":
                sys.exit(0)
            wrapper(torch.ones(2, 8)).backward()
    except Exception as error:
        said |= {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(said), flush=True)
        raise
    said["plans"] = len(lowtide.planned(wrapper).plans)
    said["gradient"] = [p.grad.sum().item() for p in model.parameters()]
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
