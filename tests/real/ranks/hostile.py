"""Ranks train under DDP in unusual ways, with and without a plan. Run by torchrun."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lowtide

WIDTH = 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.skips: set[int] = set()

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        if mask is not None and not mask.all():
            x = x * mask
        for number, layer in enumerate(self.layers):
            if number not in self.skips:
                x = x + torch.tanh(layer(x))
        return x


def train(case: str, *, planned: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net()
    unused = case in ("unused that change", "unused here and there")
    # Where buckets are never made anew, three ranks add in the same order.
    kept = {"find_unused_parameters": unused or dist.get_world_size() > 2}
    wrapper = DistributedDataParallel(model, bucket_cap_mb=0.002, **kept)
    if planned:
        asked: dict[str, Any] = {"budget": "64 MiB", "planner": "recompute_all"}
        lowtide.optimize(wrapper, **asked)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    count = 4 + rank if case == "uneven inputs" else 5

    def step(number: int) -> None:
        x = torch.randn(8 + rank if case == "other sizes" else 8, WIDTH)
        if case == "unused that change":
            model.skips = {number % 4}
        if case == "unused here and there":
            model.skips = {rank}
        if case == "two forwards":
            loss = wrapper(x).square().mean() + wrapper(2 * x).square().mean()
            loss.backward()
        elif case == "a second backward":
            with wrapper.no_sync():
                loss = wrapper(x).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
            wrapper(x).square().mean().backward()
        elif case == "other masks":
            mask = torch.ones(8, 1, dtype=torch.bool)
            mask[0] = number % 3 != rank
            wrapper(x, mask).square().mean().backward()
        elif case == "accumulation" and number % 3:
            with wrapper.no_sync():
                wrapper(x).square().mean().backward()
            return
        elif case == "an error in between" and number == 2:
            try:
                wrapper(torch.randn(8, WIDTH + 1))
            except RuntimeError:
                return
        else:
            wrapper(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    if case == "uneven inputs":
        with wrapper.join():
            for number in range(count):
                step(number)
    else:
        for number in range(count):
            step(number)
    state = [v for row in optimizer.state.values() for v in row.values()]
    return [*model.parameters(), *state]


def main() -> None:
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = train(case, planned=False)
            ours = train(case, planned=True)
        equal = all(torch.equal(p, q) for p, q in zip(plain, ours, strict=True))
        seen = {"case": case, "rank": dist.get_rank(), "equal": equal}
        print(json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
