"""When gradients are exchanged, and when the backward computes: a timeline.

`python benchmarks/overlap.py` starts two processes that train under
`DistributedDataParallel`, without lowtide and by a plan, over gloo. It draws for both
what happens in one backward of rank 0: each line is a bucket that is being summed, and
the first line the backward that computes. Results, with the seconds of exchange that
lie within the backward, go to `benchmarks/results/overlap.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import lowtide

RESULTS = Path(__file__).parent / "results" / "overlap.json"
WIDTH, BLOCKS, ROWS, COLUMNS = 768, 8, 2048, 72
Span = tuple[float, float]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def backward(*, planned: bool, unused: bool) -> dict[str, Any]:
    """The last of five backwards: its own span, and those of its buckets."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    if planned:
        lowtide.optimize(model, budget="85%")
    wrapper = DistributedDataParallel(
        model, bucket_cap_mb=9, find_unused_parameters=unused
    )
    begun: list[float] = []
    ended: dict[int, float] = {}
    computed: list[float] = []

    def exchange(state: Any, bucket: Any) -> Any:
        number = len(begun)
        begun.append(time.perf_counter())

        def note(future: Any) -> Any:
            ended[number] = time.perf_counter()
            return future.value()

        return allreduce_hook(state, bucket).then(note)

    exchange.__annotations__.clear()  # DDP compares them with classes, not with text
    wrapper.register_comm_hook(None, exchange)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda _: computed.append(time.perf_counter())
        )
    for _ in range(5):
        loss = wrapper(torch.randn(ROWS, WIDTH)).square().mean()
        begun.clear(), ended.clear(), computed.clear()
        start = time.perf_counter()
        loss.backward()
        model.zero_grad()
    spans = [(b - start, ended[k] - start) for k, b in enumerate(begun)]
    return {"backward": (0.0, computed[-1] - start), "buckets": spans}


def drawn(name: str, seen: dict[str, Any]) -> list[str]:
    whole = max([seen["backward"], *seen["buckets"]], key=lambda span: span[1])[1]

    def bar(span: Span, sign: str) -> str:
        begin, end = (round(COLUMNS * at / whole) for at in span)
        return " " * begin + sign * max(1, end - begin)

    rows = [("computes", seen["backward"], "#")]
    rows += [(f"bucket {k}", span, "=") for k, span in enumerate(seen["buckets"])]
    return [name, *(f"  {what:<9} {bar(span, sign)}" for what, span, sign in rows)]


def main() -> None:
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run([*command, "--nproc-per-node", "2", __file__], check=True)
        return
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for unused in (False, True):
        for planned in (False, True):
            name = "by a plan" if planned else "without lowtide"
            name += ", find_unused_parameters" if unused else ""
            seen = backward(planned=planned, unused=unused)
            ends = seen["backward"][1]
            within = [max(0.0, min(e, ends) - b) for b, e in seen["buckets"]]
            found[name] = {**seen, "overlapped_seconds": sum(within)}
            found[name]["timeline"] = drawn(name, seen)
            if dist.get_rank() == 0:
                print("\n".join(found[name]["timeline"]), flush=True)
    if dist.get_rank() == 0:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
