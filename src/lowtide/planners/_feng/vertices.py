"""The forward of a step as a graph of vertices, for planners that cut it.

A vertex is what one forward op makes: an op runs as a whole, so its outputs share one
fate. An edge leads from what an op reads to what it makes. Residents are no vertices.
Vertex 0 is a source before everything that needs only residents, and the last vertex
is the target behind what the turn reads, so that every vertex lies on a path between
the two. Numbers follow the baseline: every edge goes from a lower to a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.step.graph import StepGraph
from lowtide.step.schedule import must_keep, saved_by_baseline

# A side result that nothing in the forward reads becomes a branch of its own only if it
# and what leads to it alone hold this part of all bytes; smaller ones are folded.
_BRANCH_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Vertices:
    """A graph with one source (0) and one target (the last vertex).

    `kept_bytes[v]` is what it takes to keep vertex v over the turn, `inner_bytes[v]`
    what v adds to a segment that is recomputed as a whole: the part of it that the
    backward reads. `storages[v]` are to be kept if v is.
    """

    kept_bytes: tuple[int, ...]
    inner_bytes: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    storages: tuple[tuple[int, ...], ...]


def forward_vertices(step: StepGraph) -> Vertices:
    """The vertex graph of everything the step runs before its turn."""
    maker: dict[int, int] = {}
    parents: list[set[int]] = []
    made: list[list[int]] = []
    for number in step.baseline[: step.baseline.index(step.turn)]:
        op = step.ops[number]
        writes = [s for s in op.writes if not step.storages[s].resident]
        if writes:
            parents.append({maker[s] for s in op.reads if s in maker})
            maker.update(dict.fromkeys(writes, len(made)))
            made.append(writes)
    # What stays alive whatever is planned weighs nothing.
    free = must_keep(step).union(step.outputs)
    saved = set(saved_by_baseline(step)) - free
    read = {s for number in step.baseline for s in step.ops[number].reads} - free
    kept = [sum(step.sizes[s] for s in writes if s in read) for writes in made]
    inner = [sum(step.sizes[s] for s in writes if s in saved) for writes in made]
    reached = {maker[s] for s in step.ops[step.turn].reads if s in maker}
    ends = _large_ends(parents, inner, reached)
    used = _ancestors(parents, ends)
    # A side result shares the fate of the last vertex it is made from.
    for v in range(len(made) - 1, -1, -1):
        if v not in used and parents[v]:
            home = max(parents[v])
            kept[home] += kept[v]
            inner[home] += inner[v]
            made[home] = made[home] + made[v]
    order = sorted(used)
    number_of = {v: i + 1 for i, v in enumerate(order)}
    target = len(order) + 1
    edges = [
        (source, number_of[v])
        for v in order
        for source in sorted(number_of[p] for p in parents[v]) or [0]
    ]
    edges.extend((number_of[v], target) for v in sorted(ends))
    return Vertices(
        (0, *(kept[v] for v in order), 0),
        (0, *(inner[v] for v in order), 0),
        tuple(edges) or ((0, target),),
        ((), *(tuple(made[v]) for v in order), ()),
    )


def _large_ends(
    parents: list[set[int]], inner: list[int], reached: set[int]
) -> set[int]:
    """The last vertex that the turn reads, and others that hold much on their own."""
    if not parents:
        return set()
    ends = reached or {len(parents) - 1}
    main = {max(ends)}
    for end in sorted(ends, reverse=True):
        alone = _ancestors(parents, {end}) - _ancestors(parents, main)
        if sum(inner[v] for v in alone) > _BRANCH_SHARE * sum(inner):
            main.add(end)
    return main


def _ancestors(parents: list[set[int]], ends: set[int]) -> set[int]:
    found = set(ends)
    for v in range(max(ends, default=-1), -1, -1):
        if v in found:
            found |= parents[v]
    return found
