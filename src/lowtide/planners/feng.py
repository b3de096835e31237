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

Two divisions are added, without which dense blocks and encoder-decoders keep nearly
everything. The paper keeps every vertex of a rigid core. Here a vertex with a single
reader (a concatenation, a sum) or a single producer may be recomputed together with its
neighbours, and what many layers read (a mask, an encoder's result) may be kept
beforehand, so that the rest falls apart at splitting vertices.

Complexity: O(V + E) for series and parallel stretches, O(V (V + E)) for rigid cores of
V vertices; then O(V) per bound, and one simulation per kept set (at most 160, fewer on
steps above 10,000 ops).

Loses when time counts: whole stretches are recomputed, once, whatever their ops cost;
when gradients or scratch decide the peak, which its objective does not see; and when a
stretch is best recomputed in nested parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.planners._feng.cover import Covering
from lowtide.planners._feng.division import divide
from lowtide.planners._feng.vertices import forward_vertices
from lowtide.planners._tried import planner_of
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import sequence_from_kept

_MOST_COVERS = 160
_FEWEST_COVERS = 16
# On long steps fewer covers are simulated: this many ops in all.
_MOST_OPS = 1_600_000


def _sequences(step: StepGraph) -> Iterator[list[int]]:
    """What the covers become, one sequence for each distinct kept set."""
    if step.turn < 0:
        return
    graph = forward_vertices(step)
    tree = divide(graph.edges, graph.inner_bytes)
    most = max(_FEWEST_COVERS, min(_MOST_COVERS, _MOST_OPS // len(step.ops)))
    for cover in Covering(tree, graph.kept_bytes).distinct(most):
        kept = {s for v in cover.vertices for s in graph.storages[v]}
        yield sequence_from_kept(step, kept)


plan = planner_of("feng", _sequences)
