"""Two ranks train under DDP, with and without a plan, and compare. Run by torchrun."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.engine.capture.tensors import bytes_in
from lowtide.engine.costs.machine import start_counting, stop_counting
from lowtide.engine.graphs.handover import Handover
from lowtide.engine.graphs.outside import residents_of
from tests.real.ranks.both_ways import compare

CASES: dict[str, dict[str, Any]] = {
    "after wrapping": {"wrap_first": True},
    "before wrapping, no_sync": {"no_sync": True},
    "static_graph": {"wrap_first": True, "static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
}
WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).square().mean()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    states = [state for state in optimizer.state.values()]
    return [*model.parameters(), *(v for state in states for v in state.values())]


def train(case: dict[str, Any], *, planned: bool, seen: dict[str, Any]) -> list[Any]:
    options = dict(case)
    wrap_first = options.pop("wrap_first", False)
    no_sync = options.pop("no_sync", False)
    torch.manual_seed(0)
    model = Net()
    if not options.get("find_unused_parameters"):
        del model.unused
    events: list[str] = []
    for number, block in enumerate(model.blocks):
        for p in block.parameters():
            told = f"block {number}"
            p.register_post_accumulate_grad_hook(lambda _, t=told: events.append(t))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    asked: dict[str, Any] = {"budget": "64 MiB", "planner": "recompute_all"}
    asked["optimizer"] = optimizer
    if planned and not wrap_first:
        lowtide.optimize(model, **asked)
    wrapper = DistributedDataParallel(model, bucket_cap_mb=0.02, **options)
    if planned and wrap_first:
        lowtide.optimize(wrapper, **asked)

    def exchange(state: Any, bucket: Any) -> Any:
        events.append("bucket")
        return allreduce_hook(state, bucket)

    exchange.__annotations__.clear()  # DDP compares them with classes, not with text
    if not no_sync:
        wrapper.register_comm_hook(None, exchange)
    torch.manual_seed(dist.get_rank())
    for number in range(5):
        x = torch.randn(2048, WIDTH)
        if no_sync and number in (0, 2):
            with wrapper.no_sync():
                wrapper(x).backward()
            continue
        events.clear()
        Handover.events = events  # type: ignore[attr-defined]
        if number == 4:
            start_counting()
        wrapper(x).backward()
        if number == 4:
            changes = stop_counting()[0]
            gradients = bytes_in([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    # The buckets are as large as the gradients, and were there before the step.
    there = bytes_in(residents_of([model], optimizer, x)) + gradients
    call = lowtide.planned(wrapper)
    if call is not None:
        (plan,) = call.plans[-1:]
        seen["graphs"] = call.watch.graphs
        seen["planned"] = plan.peak_bytes
        seen["peak"] = max(accumulate(changes, initial=there))
        seen["baseline"] = plan.baseline_peak_bytes
        seen["recomputed"] = len(plan.recomputed)
        seen["events"] = list(events)
        plans: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(plans, [str(p.schedule) for p in call.plans])
        seen["one plan"] = plans[0] == plans[1]
    return everything(model, optimizer)


def main() -> None:
    lowtide.optimize(nn.Linear(1, 1), budget="1 GiB")  # before processes have met
    dist.init_process_group("gloo")
    run = Handover.next_part

    def next_part(self: Handover) -> None:
        self.events.append("part")  # type: ignore[attr-defined]
        run(self)

    Handover.next_part = next_part  # type: ignore[method-assign]
    for name, case in CASES.items():
        torch._dynamo.reset()
        seen: dict[str, Any] = {"case": name, "rank": dist.get_rank()}
        compare(train, case, seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
