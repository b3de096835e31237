"""The exact optimum when what is kept dies during the backward.

Problem: choose cuts of least real peak: while a segment is run again and goes backward,
only what was kept before it is still held.
Idea: M(i) = min over j > i of max(kept by (i, j) + M(j), peak of (i, j)), from the last
cut back, with segment peaks and kept bytes of the step itself (gradients that grow,
values shared by several cuts counted once). Under a budget the same recurrence runs
forward with pairs (bytes kept, seconds), each segment saved or run again.

Reference: D.-Y. Hong, T.-H. Tsai, N. Wang, P. Liu, J.-J. Wu, "GPU memory usage
optimization for backward propagation in deep network training", arXiv 2502.12499 (the
dynamic objective); `lowtide.chains.optimal_dynamic` solves it on plain sizes in O(n).
Measured segment peaks are not monotone, so the O(n^2) form is used here.
Complexity: O(cuts^2) after the O(cuts * ops) tables; with a budget times a few dozen;
then one simulation per plan tried.
Loses: a segment is saved whole or not at all, and run again at most once: `rotor` runs
prefixes again and again, `auto` chooses single storages.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.planners._chain.segments import (
    kept_sequences,
    ladder,
    num_levels,
    rich_chain,
)
from lowtide.planners._tried import planner_of
from lowtide.step.graph import StepGraph


def _sequences(step: StepGraph) -> Iterator[list[int]]:
    return kept_sequences(ladder(rich_chain(step), levels=num_levels(step)))


plan = planner_of("hong_dynamic", _sequences)
