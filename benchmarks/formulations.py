"""Three published formulations beside `auto`, on steps small enough for them.

    python benchmarks/formulations.py                 # results are kept
    python benchmarks/formulations.py --seconds 30 --dry
    python benchmarks/formulations.py --steps folder  # with `offload` on saved steps

`moccasin`: the fewest seconds if every op may run at most twice, the baseline's order
kept within stages (Bartan et al., ICML 2023). The paper gives it to a constraint solver
as intervals; here it is Checkmate's program with a row for each op that allows one
repetition, solved in whole numbers by HiGHS.

`olla`: the lowest peak by order alone, nothing runs twice (Steiner et al., ICML 2023):
an op for each time and a storage alive or not at each time, between the earliest and
the latest time that its ancestors and descendants allow, solved by HiGHS.

`pofo`: stages of a chain that are kept, run again or sent to the host's memory and back
while others compute (Beaumont et al., NeurIPS 2021). A simplification: what is sent
belongs to the first stages, for every number of them, and the rest is `rotor`'s
dynamic program. `auto` sends nothing anywhere, so this one has a resource more. Its
time is that of the chain's model: schedules here know no transfers, so it is not
simulated.

The first two are simulated as every plan is. All is predicted. The solvers end by the
clock, so where a row says that they did, it depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from lowtide import chains
from lowtide.errors import BudgetTooSmallError
from lowtide.planners import auto, rotor
from lowtide.planners._chain.segments import rich_chain
from lowtide.planners._checkmate.model import Model
from lowtide.planners._checkmate.stages import Stages, sequence_carrying
from lowtide.planners._lifetimes import backward_bytes
from lowtide.planners._linear import Program, solve
from lowtide.planners.auto._problem import Problem
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate
from tests import graphs

RESULTS = Path(__file__).parent / "results" / "formulations.json"
SHARES = (0.8, 0.65)  # of the way from the lowest peak up to the baseline's
HOST_BYTES_PER_SECOND = 25e9  # PCIe 4.0 x16, as an A100 has
MOST_RUNS = 2
SLOTS = 150
STEPS: dict[str, Callable[[], StepGraph]] = {
    "chain of 5": lambda: graphs.chain(5),
    "residual of 1": lambda: graphs.residual(1),
    "dense of 2": lambda: graphs.dense(2),
    "U-Net of 1": lambda: graphs.unet(1),
    "U-Net of 2": lambda: graphs.unet(2),
    "transformer of 1": lambda: graphs.transformer(1),
}


def moccasin(step: StepGraph, budget: int, seconds: float) -> dict[str, Any]:
    """Checkmate's program, in which no op runs more than `MOST_RUNS` times."""
    stages = Stages(step)
    model = Model(stages, max(1.0, step.baseline_peak_bytes / 1000), budget)
    for number in step.baseline:
        again = [runs[number] for runs in model.rerun if number in runs]
        if len(again) >= MOST_RUNS:
            model.program.row(-np.inf, MOST_RUNS - 1.0, dict.fromkeys(again, 1.0))
    answer = solve(model.program, time_limit=seconds)
    ended = "optimal" if answer.is_optimal else "time"
    if not answer.values:
        return {"ended": "infeasible" if answer.is_infeasible else ended}
    carried, runs = (
        [{i for i, c in row.items() if answer.values[c] > 0.5} for row in columns]
        for columns in (model.carry, model.rerun)
    )
    sequence = sequence_carrying(stages, carried, runs)
    return {"ended": ended, **simulated(step, sequence)}


def simulated(step: StepGraph, sequence: list[int]) -> dict[str, Any]:
    """Peak and extra time by the simulator."""
    timeline = simulate(step, with_frees(step, sequence))
    extra = timeline.seconds / step.baseline_seconds - 1.0
    return {"peak_bytes": timeline.peak_bytes, "overhead": extra}


def olla(step: StepGraph, seconds: float) -> dict[str, Any]:
    """The order of the baseline's ops with the lowest peak."""
    problem, program = Problem(step), Program()
    numbers = list(step.baseline)
    count = len(numbers)
    unit = max(1.0, step.baseline_peak_bytes / 1000)
    before = {i: {a for a in numbers if problem.comes_before(a, i)} for i in numbers}
    fixed = [i for i in numbers if problem.once[i] or problem.opens[i] >= 0]
    for k, number in enumerate(fixed):  # these keep their order
        before[number] |= set(fixed[:k]).union(*(before[i] for i in fixed[:k]))
    after = {i: sum(i in before[j] for j in numbers) for i in numbers}
    runs = {
        (i, t): program.column(0, 1, integral=True)
        for i in numbers
        for t in range(len(before[i]), count - after[i])
    }
    makers = {s: i for i in numbers for s in problem.writes[i]}
    alive = {(s, t): program.column(0, 1) for s in makers for t in range(count)}
    peak = program.column(0, np.inf, cost=1.0)
    for i in numbers:
        own = {runs[i, t]: 1.0 for t in range(count) if (i, t) in runs}
        program.row(1, 1, own)
    for t in range(count):
        here = {i: runs[i, t] for i in numbers if (i, t) in runs}
        program.row(1, 1, dict.fromkeys(here.values(), 1.0))
        load = {peak: -1.0}
        for i, column in here.items():
            load[column] = problem.fresh_bytes[i] / unit
            for s in problem.reads[i]:
                terms = {column: 1.0}
                if t > 0:
                    terms[alive[s, t - 1]] = -1.0
                program.row(-np.inf, 0, terms)
        for s, maker in makers.items():
            terms = {alive[s, t]: 1.0}
            if (maker, t) in runs:
                terms[runs[maker, t]] = -1.0
                if problem.held[s]:  # once made it stays
                    program.row(0, np.inf, terms)
            if t > 0:
                terms[alive[s, t - 1]] = -1.0
                load[alive[s, t - 1]] = problem.size[s] / unit
                if problem.held[s]:
                    row = {alive[s, t]: 1.0, alive[s, t - 1]: -1.0}
                    program.row(0, np.inf, row)
            program.row(-np.inf, 0, terms)
        program.row(-np.inf, -problem.resident_bytes / unit, load)
    begun = {runs[i, t]: 1.0 for t, i in enumerate(numbers)}
    start = {column: begun.get(column, 0.0) for column in runs.values()}
    answer = solve(program, time_limit=seconds, start=start)
    ended = "optimal" if answer.is_optimal else "time"
    if not answer.values:
        return {"ended": ended}
    order = sorted((t, i) for (i, t), c in runs.items() if answer.values[c] > 0.5)
    return {"ended": ended, **simulated(step, [i for _, i in order])}


def pofo(step: StepGraph, budget: int) -> dict[str, Any]:
    """The best number of first stages whose values go to the host and come back."""
    chain = rich_chain(step)
    base = int(backward_bytes(chain.lifetimes).lasting.min())
    stages = rotor._stages(chain, base)
    forward = sum(stage.forward_seconds for stage in stages)
    best: dict[str, Any] = {"ended": "no plan"}
    for sent in range(len(stages)):
        first, rest = stages[:sent], stages[sent:]
        # One value is on its way while the next is made.
        passing = max((stage.saved_bytes for stage in first), default=0)
        room = budget - base - passing
        if room < chains.rotor_floor(rest):
            continue
        moves = chains.rotor(rest, room, slots=SLOTS)
        again = moves.seconds - sum(stage.forward_seconds for stage in rest)
        there = sum(stage.saved_bytes for stage in first) / HOST_BYTES_PER_SECOND
        backward = step.baseline_seconds - forward
        waiting = max(0.0, there - forward) + max(0.0, there - backward)
        extra = (again + waiting) / step.baseline_seconds
        if extra < best.get("overhead", np.inf):
            best = {"ended": "optimal", "overhead": extra, "sent": sent}
    return best


def ours(step: StepGraph, budget: int, seconds: float) -> dict[str, Any]:
    """What `auto` finds there."""
    try:
        plan = auto.plan(step, budget, time_limit=min(10.0, seconds))
    except BudgetTooSmallError:
        return {"ended": "no plan"}
    return {
        "ended": plan.proof.stopped_by,
        "peak_bytes": plan.peak_bytes,
        "overhead": plan.overhead,
    }


def compare(name: str, step: StepGraph, seconds: float, kinds: str) -> list[Any]:
    """Rows of one step: each formulation and `auto` at the same budget."""
    lowest = auto.plan(step, None).peak_bytes
    span = step.baseline_peak_bytes - lowest
    asked: list[tuple[str, int, dict[str, Any], float]] = []

    def add(kind: str, budget: int | None, find: Callable[[], dict[str, Any]]) -> None:
        if kind in kinds.split():
            begun = time.process_time()
            found = find()
            at = budget or found.get("peak_bytes", step.baseline_peak_bytes)
            asked.append((kind, at, found, time.process_time() - begun))

    add("olla", None, lambda: olla(step, seconds))
    for share in SHARES:
        budget = lowest + int(share * span)
        add("moccasin", budget, lambda b=budget: moccasin(step, b, seconds))
        add("pofo", budget, lambda b=budget: pofo(step, b))
    rows: list[dict[str, Any]] = []
    for kind, budget, found, took in asked:
        beside = ours(step, budget, seconds)
        rows.append(
            {
                "step": name,
                "ops": len(step.ops),
                "kind": kind,
                "budget": budget / step.baseline_peak_bytes,
                "theirs": found,
                "seconds": took,
                "auto": beside,
            }
        )
        print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row for the terminal."""
    cells = [
        f"{100 * row[who]['overhead']:+.2f} %" if "overhead" in row[who] else "-"
        for who in ("theirs", "auto")
    ]
    return (
        f"{row['step'][:18]:18} {row['ops']:5} {row['kind']:9} {row['budget']:6.1%} "
        f"{cells[0]:>10} ({row['theirs']['ended']}) auto {cells[1]:>10}"
    )


def main() -> None:
    """Compare on every step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each solver")
    parser.add_argument("--steps", type=Path, help="folder of saved steps, for pofo")
    parser.add_argument("--dry", action="store_true", help="keep no results")
    options = parser.parse_args()
    rows: list[Any] = []
    for name, make in STEPS.items():
        rows += compare(name, make(), options.seconds, "olla moccasin")
    for file in sorted(options.steps.glob("*.step.json")) if options.steps else ():
        step = StepGraph.load(file)
        rows += compare(step.name, step, options.seconds, "pofo")
    if not options.dry:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
