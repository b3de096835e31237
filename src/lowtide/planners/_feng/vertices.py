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
    before = step.baseline[: step.baseline.index(step.turn)]
    maker: dict[int, int] = {}
    parents: list[set[int]] = []
    made: list[list[int]] = []
    for number in before:
        op = step.ops[number]
        writes = [s for s in op.writes if not step.storages[s].resident]
        if not writes:
            continue
        parents.append({maker[s] for s in op.reads if s in maker})
        made.append(writes)
        for s in writes:
            maker[s] = len(made) - 1
    ends = {maker[s] for s in step.ops[step.turn].reads if s in maker}
    return _Shape(step, parents, made, ends).vertices()


class _Shape:
    """Weights the vertices, folds side results, and closes the graph at both ends."""

    def __init__(
        self,
        step: StepGraph,
        parents: list[set[int]],
        made: list[list[int]],
        ends: set[int],
    ) -> None:
        self.parents, self.made = parents, made
        # What stays alive whatever is planned weighs nothing.
        free = must_keep(step).union(step.outputs)
        saved = frozenset(saved_by_baseline(step))
        read = saved.union(*(step.ops[i].reads for i in step.baseline))
        sizes = step.sizes
        self.kept = [sum(sizes[s] for s in m if s in read - free) for m in made]
        self.inner = [sum(sizes[s] for s in m if s in saved - free) for m in made]
        self.ends = self._large_ends(ends)

    def _large_ends(self, ends: set[int]) -> set[int]:
        if not self.made:
            return set()
        if not ends:
            return {len(self.made) - 1}
        main = {max(ends)}
        least = _BRANCH_SHARE * sum(self.inner)
        for end in sorted(ends, reverse=True):
            alone = self._ancestors({end}) - self._ancestors(main)
            if sum(self.inner[v] for v in alone) > least:
                main.add(end)
        return main

    def _ancestors(self, ends: set[int]) -> set[int]:
        found = set(ends)
        for v in range(len(self.made) - 1, -1, -1):
            if v in found:
                found |= self.parents[v]
        return found

    def vertices(self) -> Vertices:
        used = self._ancestors(self.ends)
        # A side result shares the fate of the last vertex it is made from.
        for v in range(len(self.made) - 1, -1, -1):
            if v not in used and self.parents[v]:
                home = max(self.parents[v])
                self.kept[home] += self.kept[v]
                self.inner[home] += self.inner[v]
                self.made[home] = self.made[home] + self.made[v]
        order = sorted(used)
        number = {v: i + 1 for i, v in enumerate(order)}
        target = len(order) + 1
        edges: list[tuple[int, int]] = []
        for v in order:
            sources = sorted(number[p] for p in self.parents[v]) or [0]
            edges.extend((p, number[v]) for p in sources)
        edges.extend((number[v], target) for v in sorted(self.ends))
        return Vertices(
            (0, *(self.kept[v] for v in order), 0),
            (0, *(self.inner[v] for v in order), 0),
            tuple(edges) or ((0, target),),
            ((), *(tuple(self.made[v]) for v in order), ()),
        )
