"""The exact optimum of Chen's objective: all that is kept, plus the largest segment.

Problem: choose cuts so that (bytes kept at all of them) + (peak of the worst segment)
is least, as if everything kept stayed to the end of the backward.
Idea: bound the worst segment by b. The least kept bytes over all sets of cuts without a
worse segment is a shortest path over the cuts. It can only fall as b grows, so of all
b only those in brackets that can still beat the best are tried: exact, in some tens of
paths (more than 64 are not tried). Segment peaks are those of the step, its gradients
included. Under a budget the paths of all bounds tried compete, with segments saved
where it allows.

Reference: D.-Y. Hong, T.-H. Tsai, N. Wang, P. Liu, J.-J. Wu, "GPU memory usage
optimization for backward propagation in deep network training", arXiv 2502.12499 (the
static objective); `lowtide.chains.optimal_static` solves it on plain sizes.
Complexity: O(cuts^2) per bound after the O(cuts * ops) tables, then one simulation per
plan tried.
Loses: kept bytes really die during the backward, so early segments could be longer than
it allows; see `hong_dynamic`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from lowtide.planners._chain.chain import Chain, chain_of
from lowtide.planners._chain.segments import num_levels, sequences_at
from lowtide.planners._lifetimes import Bytes
from lowtide.planners._tried import planner_of
from lowtide.step.graph import StepGraph

_MAX_PATHS = 64


def _sequences(step: StepGraph) -> Iterator[list[int]]:
    chain = chain_of(step, max_cuts=128)
    levels = max(4, num_levels(step) // 4)
    return sequences_at([chain.at(cuts) for cuts in static_paths(chain)], levels)


def static_paths(chain: Chain) -> list[tuple[int, ...]]:
    """Cuts of least kept bytes for each bound tried, the best by static peak first."""
    if len(chain) < 2:
        return [(0,)]
    bounds = np.unique(chain.again_peak[np.triu_indices(len(chain), 1)])
    # The tightest bound for which any path exists is the bottleneck of single steps.
    first = int(np.searchsorted(bounds, _bottleneck(chain)))
    paths: dict[int, tuple[int, tuple[int, ...]]] = {}

    def path(index: int) -> tuple[int, tuple[int, ...]]:
        if index not in paths:
            paths[index] = _shortest(chain, int(bounds[index]))
        return paths[index]

    last = len(bounds) - 1
    best = min(int(bounds[k]) + path(k)[0] for k in (first, last))
    brackets = [(int(bounds[first]) + path(last)[0], first, last)]
    while brackets and len(paths) < _MAX_PATHS:
        least, low, high = heapq.heappop(brackets)
        if least >= best or high - low < 2:
            continue
        middle = (low + high) // 2
        best = min(best, int(bounds[middle]) + path(middle)[0])
        for a, b in ((low, middle), (middle, high)):
            heapq.heappush(brackets, (int(bounds[a]) + path(b)[0], a, b))
    ranked = sorted(paths, key=lambda k: (int(bounds[k]) + paths[k][0], k))
    return list(dict.fromkeys(paths[k][1] for k in ranked))


def _bottleneck(chain: Chain) -> int:
    """The least bound for which some set of cuts has no worse segment."""
    worst: Bytes = np.zeros(len(chain), np.int64)
    for j in range(1, len(chain)):
        worst[j] = np.maximum(worst[:j], chain.again_peak[:j, j]).min()
    return int(worst[-1])


def _shortest(chain: Chain, bound_bytes: int) -> tuple[int, tuple[int, ...]]:
    """Least kept bytes, and the cuts, with no segment above the bound."""
    count = len(chain)
    infinite = np.iinfo(np.int64).max // 2
    kept: Bytes = np.full(count, infinite, np.int64)
    kept[0] = 0
    previous = [0] * count
    for j in range(1, count):
        via = np.where(
            chain.again_peak[:j, j] <= bound_bytes,
            kept[:j] + chain.cut_bytes[:j, j],
            infinite,
        )
        previous[j] = int(via.argmin())
        kept[j] = min(int(via[previous[j]]), infinite)
    cuts = [count - 1]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return int(kept[-1]), tuple(reversed(cuts))


plan = planner_of("hong_static", _sequences)
