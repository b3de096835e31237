"""Training with random lengths: captures, searches, peaks, time and memory.

A small GPT is trained for many steps of random lengths, plainly and under a budget that
is a share of what its longest step takes. Counted are the graphs that were captured and
the plans that were searched for. In each step the bytes that torch's allocator hands
out are compared with the budget (`--peaks`, in a run of its own, as counting is slow);
times are taken step by step in turns, without those in which lowtide planned anything;
and the process's memory is read all along. Losses are compared bit by bit.

    python benchmarks/shapes.py                      # times: on a quiet machine
    python benchmarks/shapes.py --peaks --steps 200
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

import lowtide
from lowtide.engine.costs.machine import count_allocations, status_bytes
from lowtide.engine.planning import Planning

RESULTS = Path(__file__).parent / "results" / "shapes.json"
WIDTH, HEADS, LAYERS, VOCABULARY, BATCH = 192, 6, 6, 512, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        mixed = self.mix(self.before(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.wide(self.between(x))


class Net(nn.Module):
    def __init__(self, longest: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(longest, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x) + self.places(torch.arange(x.shape[1]))
        y = self.head(self.blocks(y))
        return nn.functional.cross_entropy(y.flatten(0, 1), x.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--least", type=int, default=16)
    parser.add_argument("--most", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--peaks", action="store_true")
    asked = parser.parse_args()
    torch.manual_seed(0)
    plain = Net(asked.most)
    planned = copy.deepcopy(plain)
    longest = torch.randint(0, VOCABULARY, (BATCH, asked.most))
    unplanned = lowtide.profile(plain, longest, how="estimate").eager_peak_bytes
    budget = int(asked.share * unplanned)
    lowtide.optimize(planned, budget=budget)
    found = run(plain, planned, asked, budget)
    found |= {"budget_bytes": budget, "unplanned_bytes": unplanned}
    print(json.dumps(found, indent=1))
    if not asked.peaks:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def run(plain: Net, planned: Net, asked: argparse.Namespace, budget: int) -> dict:
    searches = 0
    search = Planning.search

    def counted(*args, **kwargs):
        nonlocal searches
        searches += 1
        return search(*args, **kwargs)

    Planning.search = counted  # type: ignore[method-assign]
    optimizers = [
        torch.optim.SGD(net.parameters(), lr=1e-3) for net in (plain, planned)
    ]
    call = lowtide.planned(planned)
    ratios, memory, planning_seconds, above, highest = [], [], 0.0, 0, 0
    totals = [0.0, 0.0]
    for number in range(asked.steps):
        length = int(torch.randint(asked.least, asked.most + 1, ()))
        x = torch.randint(0, VOCABULARY, (BATCH, length))
        before = call.watch.graphs, searches, _decided(call)
        losses, seconds = [], []
        for net, optimizer in zip((plain, planned), optimizers, strict=True):
            optimizer.zero_grad()
            begin = time.perf_counter()
            if asked.peaks and net is planned and number > 1:
                loss, taken = count_allocations(partial(_step, net, x), x.device)
                peak = taken + call.plans[-1].resident_bytes
                highest = max(highest, peak)
                above += peak > budget
            else:
                loss = _step(net, x)
            seconds.append(time.perf_counter() - begin)
            optimizer.step()
            losses.append(loss)
        assert losses[0] == losses[1], f"step {number}: {losses}"
        if (call.watch.graphs, searches, _decided(call)) == before:
            ratios.append(seconds[1] / seconds[0])
            totals = [a + b for a, b in zip(totals, seconds, strict=True)]
        else:
            planning_seconds += seconds[1]
        memory.append(status_bytes("VmRSS"))
    same = all(
        torch.equal(a, b)
        for a, b in zip(plain.parameters(), planned.parameters(), strict=True)
    )
    quarter = len(memory) // 4
    return {
        "steps": asked.steps,
        "captures": call.watch.graphs,
        "searches": searches,
        "same_bits": same,
        "time_ratio": totals[1] / totals[0],
        "median_ratio": statistics.median(ratios),
        "planning_seconds": planning_seconds,
        "steps_above_budget": above if asked.peaks else None,
        "highest_bytes": highest if asked.peaks else None,
        "rss_second_quarter": max(memory[quarter : 2 * quarter]),
        "rss_last_quarter": max(memory[-quarter:]),
    }


@torch.enable_grad()  # allocations are counted without gradients otherwise
def _step(net: Net, x: torch.Tensor) -> float:
    loss = net(x)
    loss.backward()
    return loss.item()


def _decided(call: lowtide.engine.runtime.PlannedCall) -> int:
    return len(call.plans)


if __name__ == "__main__":
    main()
