"""The fastest chain of stages under a limit, running prefixes again and again.

Problem: least time under a budget for a chain of stages, where each run of a stage
forward saves nothing, its input, or all that its backward needs.
Idea: T(m, i, t), the least time for stages i .. t with m bytes, either saves stage i
whole and goes on, or keeps the input of some later stage j, handles j .. t first, and
then runs from i again for the rest. Stages are segments between narrow places of the
step, with times and bytes measured on it; storages that cross many places (masks, long
skips) are kept throughout. The sequence is lowered to ops, each made as late as it can
be, and simulated: the limit given to the recurrence shrinks until the real peak fits.

Reference: O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
checkpointing for heterogeneous chains", arXiv 1911.13214; `lowtide.chains.rotor`.
Complexity: O(slots * stages^3) per limit tried, then one simulation.
Loses: whole stages only, and few of them, so single cheap storages cannot be dropped;
steps that are no chain (U-Nets, encoder-decoders) keep their skips.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowtide._graph import StepGraph
from lowtide._plan import Plan
from lowtide._schedule import (
    make_plan,
    missing_cone,
    plan_or_raise,
    with_frees,
)
from lowtide._simulate import simulate
from lowtide.chains import (
    Backward,
    Forward,
    RotorSolution,
    RotorStep,
    Stage,
    StageOption,
    rotor,
    rotor_floor,
)
from lowtide.planners._chain import Chain, backward_bytes, coarse_chain
from lowtide.planners._segments import Tried, num_levels, pick

_GRAINS = (49, 17)
_NUM_SHARED = 4
_SLOTS = 200


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The fastest plan of whole stages that fits, or that of least peak."""
    del time_limit
    baseline = with_frees(step, step.baseline)
    if budget_bytes is not None and step.baseline_peak_bytes <= budget_bytes:
        return make_plan(step, baseline, planner="rotor", budget_bytes=budget_bytes)
    tried = [Tried(step.baseline_peak_bytes, step.baseline_seconds, baseline)]
    for max_cuts in _GRAINS if step.turn >= 0 else ():
        chain = coarse_chain(step, max_cuts=max_cuts, num_shared=_NUM_SHARED)
        stages = _stages(chain)
        sequences = dict.fromkeys(s.sequence for s in _solutions(step, stages))
        for sequence in sequences:
            schedule = with_frees(step, _Lowering(chain).lower(sequence))
            timeline = simulate(step, schedule)
            tried.append(Tried(timeline.peak_bytes, timeline.seconds, schedule))
    chosen = pick(tried, budget_bytes)
    return plan_or_raise(
        step, chosen.schedule, planner="rotor", budget_bytes=budget_bytes
    )


def _solutions(step: StepGraph, stages: Sequence[Stage]) -> Iterator[RotorSolution]:
    """Sequences for evenly spaced limits, from the least to the baseline's peak."""
    low = rotor_floor(stages)
    high = max(low, step.baseline_peak_bytes)
    levels = num_levels(step)
    for level in range(levels):
        yield rotor(stages, low + (high - low) * level // levels, slots=_SLOTS)


def _stages(chain: Chain) -> list[Stage]:
    """The segments of a chain as stages, in absolute bytes.

    What lies beneath (residents, gradients of parameters made by then) is counted as
    scratch of every pass, so that the limit is the budget itself.
    """
    sizes = chain.step.sizes
    _, before, lasting = backward_bytes(chain.lifetimes)
    stages: list[Stage] = []
    for i in range(len(chain) - 1):
        time = chain.times[i + 1]
        output = sum(sizes[s] for s in chain.crossing[i + 1])
        through = sum(sizes[s] for s in chain.crossing[i] & chain.crossing[i + 1])
        saved = max(output, int(chain.saved_bytes[i, i + 1]) + through)
        gradient = int(before[time] - lasting[time])
        base = int(lasting[time])
        fill = max(0, int(chain.fill_bytes[i, i + 1]) - saved)
        back = max(0, int(chain.backward_peak[i, i + 1]) - saved - gradient)
        passing = max(0, int(chain.pass_bytes[i, i + 1]) - output)
        seconds = float(chain.rerun_seconds[i + 1] - chain.rerun_seconds[i])
        way = StageOption(seconds, 0.0, saved, base + fill, back)
        stages.append(
            Stage(
                forward_seconds=seconds,
                backward_seconds=0.0,
                output_bytes=output,
                saved_bytes=saved,
                gradient_bytes=gradient,
                forward_scratch_bytes=base + passing,
                backward_scratch_bytes=back,
                options=(way,),
            )
        )
    return stages


@dataclass(slots=True)
class _Lowering:
    """Turns a sequence over stages into ops.

    What is held is a set of storages; dropping one means no more than to make it again
    when it is next needed, since `with_frees` frees whatever is made again later.
    """

    chain: Chain

    def lower(self, sequence: Sequence[RotorStep]) -> list[int]:
        """The forward, the turn, and then what the rest of the sequence asks for."""
        life, step = self.chain.lifetimes, self.chain.step
        num_stages = len(self.chain) - 1
        first, rest = sequence[:num_stages], sequence[num_stages:]
        values, saved = {0}, set[int]()
        for move in first:
            assert isinstance(move, Forward)
            self._note(move, values, saved)
        turn = step.ops[life.backward[0]]
        alive = self._held(values, saved).union(turn.writes, step.resident)
        ops = [*life.forward, life.backward[0]]
        for move, following in zip(rest, [*rest[1:], None], strict=True):
            if isinstance(move, Backward):
                self._backward(move.stage, alive, ops)
                values.discard(move.stage)
                saved.discard(move.stage)
                alive = self._trim(alive, values, saved)
            else:
                self._note(move, values, saved)
                if isinstance(following, Forward):
                    self._make(self.chain.crossing[move.stage + 1], alive, ops)
                alive = self._trim(alive, values, saved)
        return ops

    def _note(self, move: Forward, values: set[int], saved: set[int]) -> None:
        if move.keep == "all":
            saved.add(move.stage)
        else:
            values.add(move.stage + 1)
            if move.keep == "nothing":
                values.discard(move.stage)

    def _held(self, values: set[int], saved: set[int]) -> set[int]:
        whole = [(stage, stage + 1) for stage in saved]
        cuts = [*values, *(stage + 1 for stage in saved)]
        return self.chain.kept(cuts, whole).union(self.chain.lifetimes.pinned)

    def _trim(self, alive: set[int], values: set[int], saved: set[int]) -> set[int]:
        """What stays: gradients, residents, and of the forward only what is held."""
        born = self.chain.lifetimes.born
        held = self._held(values, saved)
        return {s for s in alive if s not in born or s in held}

    def _backward(self, stage: int, alive: set[int], ops: list[int]) -> None:
        life, step = self.chain.lifetimes, self.chain.step
        start, stop = self.chain.times[stage + 1], self.chain.times[stage]
        for number in life.backward[max(1, start) : stop]:
            op = step.ops[number]
            if op.opens < 0:
                self._make(op.reads, alive, ops)
            ops.append(number)
            alive.update(op.writes)

    def _make(
        self, needed: Sequence[int] | frozenset[int], alive: set[int], ops: list[int]
    ) -> None:
        cone = missing_cone(self.chain.step, needed, alive)
        ops.extend(cone)
        for number in cone:
            alive.update(self.chain.step.ops[number].writes)
