"""The fastest chain of stages under a limit, running prefixes again and again.

Problem: least time under a budget for a chain of stages, where each run of a stage
forward saves nothing, its input, or all that its backward needs.
Idea: T(m, i, t), the least time for stages i .. t with m bytes, either saves stage i
whole and goes on, or keeps the input of some later stage j, handles j .. t first, and
then runs from i again for the rest. Stages are segments of the step between cuts, with
times and bytes measured on it: of even length, or those of the best plans without
nesting, which are tried as they are as well. A sequence is lowered to ops, each made as
late as it can be, and simulated; of all tried, the fastest that really fits is taken.

Reference: O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
checkpointing for heterogeneous chains", arXiv 1911.13214; `lowtide.chains.rotor`.
Complexity: O(slots * stages^3) per limit tried, then one simulation.
Loses: whole stages only, and few of them, so single cheap storages cannot be dropped.
Bytes of a value that crosses several cuts (skips, masks) are counted where it is made,
so nested plans of U-Nets and dense networks can exceed their limit and be discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lowtide import chains
from lowtide.chains import Backward, Forward, RotorStep, Stage, StageOption
from lowtide.planners._chain.chain import Chain, chain_of
from lowtide.planners._chain.segments import Choice, ladder, num_levels, rich_chain
from lowtide.planners._lifetimes import backward_bytes
from lowtide.planners._tried import planner_of
from lowtide.step.graph import StepGraph
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import sequence_from_kept
from lowtide.step.simulate import home_regions

_MAX_CUTS = 41
_NUM_CHAINS = 4
_SLOTS = 150


def _sequences(step: StepGraph) -> Iterator[list[int]]:
    """Op sequences to try, whatever the budget."""
    if step.turn < 0:
        return
    fine = rich_chain(step)
    flat = ladder(fine, levels=num_levels(step))
    yield from (sequence_from_kept(step, c.kept()) for c in flat)
    for chain, limits in _limits(step, fine, flat):
        base = int(backward_bytes(chain.lifetimes).lasting.min())
        stages = _stages(chain, base)
        low = chains.rotor_floor(stages)
        for limit in dict.fromkeys(max(low, limit - base) for limit in limits):
            moves = chains.rotor(stages, limit, slots=_SLOTS).sequence
            for holds in (True, False):
                yield _Lowering(chain, holds=holds).lower(moves)


def _limits(
    step: StepGraph, fine: Chain, flat: Sequence[Choice]
) -> Iterator[tuple[Chain, list[int]]]:
    """Chains of stages, each with the limits it suits.

    For most budgets the stages are the segments of the best plan without nesting: short
    where bytes are large, long where they do not matter. Others are of even length.
    """
    short = [c for c in flat if 2 < len(c.cuts) <= _MAX_CUTS]
    for choice in short[:: max(1, len(short) // _NUM_CHAINS)]:
        limits = [choice.peak_bytes * p // 100 for p in (96, 104)]
        yield fine.at(choice.cuts), limits
    low, high = flat[0].peak_bytes * 3 // 4, step.baseline_peak_bytes
    levels = max(4, num_levels(step) // 3)
    limits = [low + (high - low) * k // levels for k in range(levels)]
    yield chain_of(step, max_cuts=_MAX_CUTS), limits


def _stages(chain: Chain, base_bytes: int) -> list[Stage]:
    """The segments of a chain as stages, in bytes above `base_bytes`.

    What lies beneath (residents, gradients of parameters made by then) is counted as
    scratch of every pass, so that a limit plus the base is a budget.
    """
    _, before, lasting = backward_bytes(chain.lifetimes)
    stages: list[Stage] = []
    for at in pairwise(range(len(chain))):
        time = chain.times[at[1]]
        output, saved = chain.cut_bytes[at], chain.saved_bytes[at]
        gradient, base = before[time] - lasting[time], lasting[time] - base_bytes
        fill = max(0, chain.fill_bytes[at] - saved)
        back = max(0, chain.backward_peak[at] - base_bytes - saved - gradient)
        passing = max(0, chain.pass_bytes[at] - output)
        way = StageOption(chain.seconds[at], 0.0, saved, base + fill, back)
        stages.append(
            Stage(
                forward_seconds=chain.seconds[at],
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


class _Lowering:
    """Turns a sequence over stages into ops.

    What is held is a set of storages; dropping one means no more than to make it again
    when it is next needed, since `with_frees` frees whatever is made again later. With
    `holds`, the input of the stage whose backward is done last stays while the stage
    before it may still use it; the recurrence drops it and makes it again.
    """

    def __init__(self, chain: Chain, *, holds: bool) -> None:
        self.chain, self.step, self.holds = chain, chain.step, holds
        # Of each stage: whether its input is held, and whether all of it is.
        self.values, self.saved = {0}, set[int]()
        # The last stage whose backward has run.
        self.done = len(chain) - 1
        self.ops: list[int] = []
        self.alive = set[int]()
        self.regions = home_regions(self.step)

    def lower(self, sequence: Sequence[RotorStep]) -> list[int]:
        """The forward, the turn, and then what the rest of the sequence asks for."""
        life = self.chain.lifetimes
        first, rest = sequence[: self.done], sequence[self.done :]
        for move in first:
            assert isinstance(move, Forward)
            self._note(move)
        turn = life.backward[0]
        self.alive = self._held().union(self.step.ops[turn].writes, self.step.resident)
        self.ops = [*life.forward, turn]
        for move, following in zip(rest, [*rest[1:], None], strict=True):
            if isinstance(move, Backward):
                self._backward(move.stage)
            else:
                self._note(move)
                if isinstance(following, Forward):
                    self._pass_on(move.stage + 1)
            held = self._held()
            if self.holds:
                held |= self.chain.crossing[self.done]
            # Gradients and residents stay, and of the forward only what is held.
            self.alive = {s for s in self.alive if s not in life.born or s in held}
        return self.ops

    def _note(self, move: Forward) -> None:
        if move.keep == "all":
            self.saved.add(move.stage)
        else:
            self.values.add(move.stage + 1)
            if move.keep == "nothing":
                self.values.discard(move.stage)

    def _held(self) -> set[int]:
        whole = [(stage, stage + 1) for stage in self.saved]
        cuts = [*self.values, *(stage + 1 for stage in self.saved)]
        return self.chain.kept(cuts, whole).union(self.chain.lifetimes.pinned)

    def _backward(self, stage: int) -> None:
        start, stop = self.chain.times[stage + 1], self.chain.times[stage]
        for number in self.chain.lifetimes.backward[max(1, start) : stop]:
            op = self.step.ops[number]
            if op.opens < 0:
                self._run(missing_cone(self.step, op.reads, self.alive))
            self._run([number])
        self.values.discard(stage)
        self.saved.discard(stage)
        self.done = stage

    def _pass_on(self, cut: int) -> None:
        """Make what crosses a cut, unless it belongs to a piece that cannot run now.

        Then its backward will pull what it needs when its own piece is back.
        """
        cone = missing_cone(self.step, self.chain.crossing[cut], self.alive)
        # The last backward op to have run, or the turn.
        last = self.chain.lifetimes.backward[: max(1, self.chain.times[self.done])][-1]
        piece = self.step.regions[self.regions[last]].piece
        if all(self.step.ops[number].piece == piece for number in cone):
            self._run(cone)

    def _run(self, cone: list[int]) -> None:
        self.ops.extend(cone)
        for number in cone:
            self.alive.update(self.step.ops[number].writes)


plan = planner_of("rotor", _sequences)
