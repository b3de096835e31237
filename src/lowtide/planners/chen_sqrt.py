"""Cut the forward into about sqrt(n) parts of equal length.

Problem: a chain of n layers whose activations do not fit, for one more forward at most.
Idea: with k parts, the values at k cuts are held, and those of one part of n / k layers
at a time; k = sqrt(n) balances the two. Layers here are the segments between narrow
places of the step, taken fine, middling and coarse. Without a budget every part is run
again if that lowers the peak; under one, the parts whose rerun costs most are saved.

Reference: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear
memory cost", arXiv 1604.06174.
Complexity: O(cuts * ops) for the tables, then one simulation per plan tried.
Loses: parts are equal in length, not in bytes or seconds, so where early layers are
larger than late ones (every convolutional network) the first part holds the peak.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.chains import sqrt_n
from lowtide.planners._chain.chain import chain_of
from lowtide.planners._chain.segments import num_levels, sequences_at
from lowtide.planners._tried import planner_of
from lowtide.step.graph import StepGraph

_GRAINS = (192, 64, 24)


def _sequences(step: StepGraph) -> Iterator[list[int]]:
    chains = [chain_of(step, max_cuts=max_cuts) for max_cuts in _GRAINS]
    even = [chain.at(sqrt_n([1] * len(chain)).kept) for chain in chains]
    return sequences_at(even, num_levels(step))


plan = planner_of("chen_sqrt", _sequences)
