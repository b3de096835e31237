"""Feng and Huang's arbitrary computation graphs.

Problem: keep a set of forward storages so that the kept bytes and the largest stretch
that is recomputed as one are together as small as possible, on any forward graph and
not only on a chain.

Idea:

1. The forward becomes a graph: a vertex for what each op makes, an edge from what it
   reads. Side results that only the backward reads share the fate of their op.
2. The graph is divided into a tree of independent segments: at splitting vertices, into
   branches, or around rigid ("complicated") cores.
3. For a bound on the recomputed stretch, whatever fits under it stays whole. A larger
   linear segment keeps a cheapest set of splitting vertices (shortest path), a branch
   is divided further, a rigid core keeps the vertices between its parts.
4. Every weight that a stretch can have is tried as the bound; kept bytes fall as the
   bound grows, so most bounds are never evaluated.
5. The kept sets are turned into schedules and simulated: under a budget the fastest
   that fits, without one the lowest peak.

Reference: J. Feng and D. Huang, Optimal gradient checkpoint search for arbitrary
computation graphs, CVPR 2021 (arXiv 1808.00079). There the graph is written by hand for
every model; here it is read from the captured step. The tree is that of the
triconnected components, so it is unique, where the published code draws at random.

Two divisions are added and can be switched off (`divisions="paper"`). The paper keeps
every vertex of a rigid core. Here a vertex with a single reader (a concatenation, a
sum) or a single producer may be recomputed together with its neighbours, and what many
layers read (a mask, an encoder's result) may be kept beforehand, so that the rest falls
apart at splitting vertices.

Complexity: O(V + E) for series and parallel stretches, O(V (V + E)) for rigid cores of
V vertices; then O(V) per bound, and one simulation per kept set (at most 160).

Loses when time counts: whole stretches are recomputed, once, whatever their ops cost;
when gradients or scratch decide the peak, which its objective does not see; and when a
stretch is best recomputed in nested parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal
from weakref import ref

from lowtide.planners._cover import Cover, Covering
from lowtide.planners._division import divide
from lowtide.planners._vertices import Vertices, forward_vertices
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Schedule
from lowtide.step.schedule import (
    from_kept,
    make_plan,
    plan_or_raise,
    saved_by_baseline,
    with_frees,
)
from lowtide.step.simulate import simulate

Divisions = Literal["extended", "paper"]

_MOST_COVERS = 160


def plan(
    step: StepGraph,
    budget_bytes: int | None = None,
    *,
    time_limit: float = 10.0,
    divisions: Divisions = "extended",
) -> Plan:
    """The fastest plan of the family that fits, or the one with the lowest peak."""
    found = candidates(step, time_limit=time_limit, divisions=divisions)
    if budget_bytes is not None:
        fitting = [c for c in found if c[0] <= budget_bytes]
        if fitting:
            _, _, schedule = min(fitting, key=lambda c: (c[1], c[0]))
            return make_plan(step, schedule, planner="feng", budget_bytes=budget_bytes)
    _, _, schedule = min(found, key=lambda c: (c[0], c[1]))
    return plan_or_raise(step, schedule, planner="feng", budget_bytes=budget_bytes)


def optimum(
    step: StepGraph, *, divisions: Divisions = "extended"
) -> tuple[Cover, tuple[int, ...]]:
    """The optimum of the paper's own objective and the storages it keeps."""
    graph = forward_vertices(step)
    best = _covering(graph, divisions).best()
    return best, _storages(graph, best)


def candidates(
    step: StepGraph, *, time_limit: float = 10.0, divisions: Divisions = "extended"
) -> list[tuple[int, float, Schedule]]:
    """Peak, seconds and schedule of the covers, at most one per distinct kept set.

    They do not depend on the budget, so those of the last step are remembered.
    """
    global _last
    if _last[0]() is not step or _last[1] != divisions:
        _last = ref(step), divisions, _candidates(step, time_limit, divisions)
    return _last[2]


def _no_step() -> StepGraph | None:
    return None


_last: tuple[
    Callable[[], StepGraph | None], Divisions, list[tuple[int, float, Schedule]]
] = (_no_step, "extended", [])


def _candidates(
    step: StepGraph, time_limit: float, divisions: Divisions
) -> list[tuple[int, float, Schedule]]:
    if step.turn < 0:
        return [_evaluate(step, with_frees(step, step.baseline))]
    # A guard for steps far beyond those measured; it does not bind on usual ones.
    deadline = time.monotonic() + 3 * time_limit
    graph = forward_vertices(step)
    covers = _covering(graph, divisions).distinct(
        _MOST_COVERS, until=lambda: time.monotonic() > deadline
    )
    # Keeping everything is the cover for no stretch at all.
    kept = dict.fromkeys([saved_by_baseline(step)])
    kept.update(dict.fromkeys(_storages(graph, cover) for cover in covers))
    found: list[tuple[int, float, Schedule]] = []
    for storages in kept:
        found.append(_evaluate(step, from_kept(step, storages)))
        if time.monotonic() > deadline:
            break
    return found


def _covering(graph: Vertices, divisions: Divisions) -> Covering:
    tree = divide(graph.edges, graph.inner_bytes, extended=divisions == "extended")
    return Covering(tree, graph.kept_bytes)


def _storages(graph: Vertices, cover: Cover) -> tuple[int, ...]:
    found: Iterable[int] = (s for v in cover.vertices for s in graph.storages[v])
    return tuple(sorted(found))


def _evaluate(step: StepGraph, schedule: Schedule) -> tuple[int, float, Schedule]:
    timeline = simulate(step, schedule)
    return timeline.peak_bytes, timeline.seconds, schedule
