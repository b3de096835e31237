"""Cut the forward whenever the bytes since the last cut pass a bound.

Problem: as `chen_sqrt`, for layers of unequal size.
Idea: walk the forward, add up the bytes that the backward will read, and cut at the
next narrow place once they exceed a bound b. With x bytes kept and y in the largest
segment of a first pass, the best b lies near sqrt(x * y); several around it are tried,
and the plan with the least real peak is taken. Under a budget, segments are saved where
it allows, those whose rerun costs most first.

Reference: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear
memory cost", arXiv 1604.06174, algorithm 3.
Complexity: O(cuts) per bound after the O(cuts * ops) tables, then one simulation per
plan tried.
Loses: one bound for all segments, and cuts as soon as it is passed, however wide the
place is: `hong_static` chooses among all. A heuristic even for its own objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from lowtide.planners._chain.chain import Chain, chain_of
from lowtide.planners._chain.segments import num_levels, sequences_at
from lowtide.planners._tried import planner_of
from lowtide.step.graph import StepGraph

_NUM_BOUNDS = 12


def _sequences(step: StepGraph) -> Iterator[list[int]]:
    chain = chain_of(step, max_cuts=192)
    walks = dict.fromkeys(_greedy(chain, bound) for bound in _bounds(chain))
    levels = max(4, num_levels(step) // 2)
    return sequences_at([chain.at(cuts) for cuts in walks], levels)


def _bounds(chain: Chain) -> list[int]:
    """Bounds within a factor of four of sqrt(x * y), more of them near it."""
    cuts = _greedy(chain, 0)
    kept = sum(int(chain.cut_bytes[i, j]) for i, j in pairwise(cuts))
    largest = max((int(chain.saved_bytes[i, j]) for i, j in pairwise(cuts)), default=0)
    centre = math.sqrt(max(1, kept) * max(1, largest))
    half = _NUM_BOUNDS // 2
    return [
        round(centre * 4.0 ** (math.copysign((k / half) ** 2, k)))
        for k in range(-half, half + 1)
    ]


def _greedy(chain: Chain, bound_bytes: int) -> tuple[int, ...]:
    cuts = [0]
    for cut in range(1, len(chain) - 1):
        if chain.saved_bytes[cuts[-1], cut] > bound_bytes:
            cuts.append(cut)
    return (*cuts, len(chain) - 1) if len(chain) > 1 else tuple(cuts)


plan = planner_of("chen_greedy", _sequences)
