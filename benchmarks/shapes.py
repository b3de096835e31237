"""Training with random lengths: captures, searches, peaks, time, memory, other plans.

A small GPT is trained for many steps of random lengths under a budget, a share of what
its longest step takes. Three runs, each in a process of its own:

- *timed*: beside the same steps without lowtide, in turns; times without the steps in
  which lowtide planned anything, the process's memory all along, losses and weights bit
  by bit. Only this run needs a quiet machine.
- *counted*: the bytes that torch's allocator hands out in each step, from the third on,
  against the budget. What measuring ops takes is not counted here; that happens in the
  first steps, and where a length is much longer than all before.
- *compared*: for some lengths, the plan that the family gives against one that is made
  for this length alone, both on the times of its ops at this length.

    python benchmarks/shapes.py              # on a quiet machine, about ten minutes
    python benchmarks/shapes.py compared     # one of them; the others' results stay
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lowtide
from lowtide.engine.costs.machine import count_allocations, status_bytes
from lowtide.engine.graphs.orders import OrdersBySize
from lowtide.engine.planning import decide as planning
from lowtide.engine.planning.decide import Planning
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan

RESULTS = Path(__file__).parent / "results" / "shapes.json"
WIDTH, HEADS, LAYERS, VOCABULARY, BATCH = 192, 6, 6, 512, 4
STEPS, LEAST, MOST, SHARE = 1000, 16, 512, 0.6
# Lengths whose own plans are looked for, and how many steps the family grows up with.
COMPARED, GROWING = (48, 112, 208, 304, 400, 496), 24


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
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="timed, counted, compared"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    spawned = multiprocessing.get_context("spawn")
    for run in (timed, counted, compared):
        if not asked.runs or run.__name__ in asked.runs:
            with ProcessPoolExecutor(1, spawned) as alone:
                result = alone.submit(run, asked.steps).result()
            found[run.__name__] = {"steps": asked.steps, **result}
            print(run.__name__, json.dumps(found[run.__name__], indent=1), flush=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def timed(steps: int) -> dict[str, Any]:
    """Times, memory and bits beside the same steps without lowtide."""
    plain, planned, budget = nets()
    searches = count_searches()
    call = lowtide.planned(planned)
    optimizers = [torch.optim.SGD(n.parameters(), lr=1e-3) for n in (plain, planned)]
    ratios: list[float] = []
    memory: list[int] = []
    totals, planning_seconds, equal_losses = [0.0, 0.0], 0.0, 0
    for x in batches(steps):
        before = call.watch.graphs, len(searches), len(call.plans)
        losses, seconds = [], []
        for net, optimizer in zip((plain, planned), optimizers, strict=True):
            optimizer.zero_grad()
            begin = time.perf_counter()
            losses.append(step(net, x))
            seconds.append(time.perf_counter() - begin)
            optimizer.step()
        equal_losses += losses[0] == losses[1]
        if (call.watch.graphs, len(searches), len(call.plans)) == before:
            ratios.append(seconds[1] / seconds[0])
            totals = [a + b for a, b in zip(totals, seconds, strict=True)]
        else:
            planning_seconds += seconds[1]
        memory.append(status_bytes("VmRSS"))
    weights = zip(plain.parameters(), planned.parameters(), strict=True)
    tenth = max(1, steps // 10)
    return {
        "captures": call.watch.graphs,
        "searches": len(searches),
        "equal_losses": equal_losses,
        "same_weights": all(torch.equal(a, b) for a, b in weights),
        "time_ratio": totals[1] / totals[0],
        "median_ratio": statistics.median(ratios),
        "planning_seconds": planning_seconds,
        "load": os.getloadavg()[1],  # one where nothing else runs
        "rss_by_tenth": [max(memory[i : i + tenth]) for i in range(0, steps, tenth)],
        "budget_bytes": budget,
    }


def counted(steps: int) -> dict[str, Any]:
    """The highest peak of each step, by what the allocator hands out."""
    _, planned, budget = nets()
    call = lowtide.planned(planned)
    peaks = []
    for number, x in enumerate(batches(steps)):
        planned.zero_grad()
        if number < 2:  # captured, and planned again with what was seen outside
            step(planned, x)
            continue
        _, taken = count_allocations(partial(step, planned, x), x.device)
        peaks.append(taken + call.plans[-1].resident_bytes)
    return {
        "captures": call.watch.graphs,
        "budget_bytes": budget,
        "steps_counted": len(peaks),
        "steps_above_budget": sum(peak > budget for peak in peaks),
        "highest_bytes": max(peaks),
    }


def compared(steps: int) -> dict[str, Any]:
    """The family's plan and one of its own, for some lengths.

    Both are simulated on the same ops with the same times, those at this length.
    """
    _, planned, budget = nets()
    decided: dict[int, Plan] = {}
    families: list[OrdersBySize] = []
    last: list[Plan] = []
    decide_for, orders_of = OrdersBySize.decide_for, planning.orders_of

    def noted_plan(plan: Plan, *args: Any) -> Any:
        last[:] = [plan]
        return orders_of(plan, *args)

    def noted(self: OrdersBySize, values: tuple[int, ...]) -> Any:
        found = decide_for(self, values)
        if values:  # a graph with symbols
            families[:] = [self]
            decided[values[0]] = last[0]
        return found

    planning.orders_of = noted_plan
    OrdersBySize.decide_for = noted  # type: ignore[method-assign]
    call = lowtide.planned(planned)
    for x in batches(min(steps, GROWING)):
        planned.zero_grad()
        step(planned, x)
    rows = []
    for length in COMPARED:
        planned.zero_grad()
        step(planned, torch.randint(0, VOCABULARY, (BATCH, length)))
        (family,) = families
        planned.zero_grad()
        rounded = family.rounded((length,))
        own = call.planning.prepared(family.read_at((length,)))
        given = make_plan(own, decided[rounded[0]].schedule, planner="family")
        alone = call.planning.search(own, budget)
        rows.append(
            {
                "length": length,
                "served_by": rounded[0],
                "peak_bytes": given.peak_bytes,
                "overhead": given.overhead,
                "own_overhead": alone.overhead,
                "ratio": given.seconds / alone.seconds,
            }
        )
    return {"budget_bytes": budget, "rows": rows}


def nets() -> tuple[Net, Net, int]:
    """The same network twice, the second under a budget, and the budget in bytes."""
    torch.manual_seed(0)
    plain = Net(MOST)
    planned = copy.deepcopy(plain)
    longest = torch.randint(0, VOCABULARY, (BATCH, MOST))
    unplanned = lowtide.profile(plain, longest, how="estimate").eager_peak_bytes
    budget = int(SHARE * unplanned)
    return plain, lowtide.optimize(planned, budget=budget), budget


def batches(steps: int):
    """Random words of random lengths, the same in each run."""
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        length = int(torch.randint(LEAST, MOST + 1, (), generator=random))
        yield torch.randint(0, VOCABULARY, (BATCH, length), generator=random)


def count_searches() -> list[int | None]:
    """The limits that plans are searched for from here on."""
    found: list[int | None] = []
    search = Planning.search

    def noted(self: Planning, step: Any, limit_bytes: int | None, *args: Any) -> Plan:
        found.append(limit_bytes)
        return search(self, step, limit_bytes, *args)

    Planning.search = noted  # type: ignore[method-assign]
    return found


@torch.enable_grad()  # allocations are counted without gradients otherwise
def step(net: Net, x: torch.Tensor) -> float:
    loss = net(x)
    loss.backward()
    return loss.item()


if __name__ == "__main__":
    main()
