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
from dataclasses import dataclass, field

from lowtide.chains import (
    Backward,
    Forward,
    RotorStep,
    Stage,
    StageOption,
    rotor,
    rotor_floor,
)
from lowtide.planners._chain import Chain, chain_of
from lowtide.planners._chain.lifetimes import backward_bytes
from lowtide.planners._chain.segments import (
    Candidate,
    ladder,
    num_levels,
    plan_of_sequences,
    rich_chain,
)
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import sequence_from_kept

_MAX_CUTS = 41
_NUM_CHAINS = 4
_SLOTS = 150


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The fastest plan of whole stages that fits, or that of least peak."""
    del time_limit
    return plan_of_sequences(
        step, _sequences, planner="rotor", budget_bytes=budget_bytes
    )


def _sequences(step: StepGraph) -> Iterator[tuple[int, ...]]:
    """Op sequences to try, whatever the budget."""
    if step.turn < 0:
        return
    fine = rich_chain(step)
    flat = ladder(fine, levels=num_levels(step))
    for candidate in flat:
        yield tuple(sequence_from_kept(step, candidate.choice.kept(fine)))
    for chain, limits in _limits(step, fine, flat):
        base = int(backward_bytes(chain.lifetimes).lasting.min())
        stages = _stages(chain, base)
        low = rotor_floor(stages)
        for limit in dict.fromkeys(max(low, limit - base) for limit in limits):
            moves = rotor(stages, limit, slots=_SLOTS).sequence
            for holds in (True, False):
                yield tuple(_Lowering(chain, holds=holds).lower(moves))


def _limits(
    step: StepGraph, fine: Chain, flat: Sequence[Candidate]
) -> Iterator[tuple[Chain, list[int]]]:
    """Chains of stages, each with the limits it suits.

    For most budgets the stages are the segments of the best plan without nesting: short
    where bytes are large, long where they do not matter. Others are of even length.
    """
    short = [c for c in flat if 2 < len(c.choice.cuts) <= _MAX_CUTS]
    for candidate in short[:: max(1, len(short) // _NUM_CHAINS)]:
        limits = [candidate.peak_bytes * p // 100 for p in (96, 104)]
        yield fine.at(candidate.choice.cuts), limits
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
    for i in range(len(chain) - 1):
        time = chain.times[i + 1]
        output = int(chain.cut_bytes[i, i + 1])
        saved = int(chain.saved_bytes[i, i + 1])
        gradient = int(before[time] - lasting[time])
        base = int(lasting[time]) - base_bytes
        fill = max(0, int(chain.fill_bytes[i, i + 1]) - saved)
        peak = int(chain.backward_peak[i, i + 1]) - base_bytes
        back = max(0, peak - saved - gradient)
        passing = max(0, int(chain.pass_bytes[i, i + 1]) - output)
        seconds = float(chain.seconds[i, i + 1])
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
    when it is next needed, since `with_frees` frees whatever is made again later. With
    `holds`, the input of the stage whose backward is done last stays while the stage
    before it may still use it; the recurrence drops it and makes it again.
    """

    chain: Chain
    holds: bool
    pieces: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Note the piece that is open after each backward op."""
        step, self.pieces = self.chain.step, []
        for number in self.chain.lifetimes.backward:
            opens = step.ops[number].opens
            piece = step.regions[opens].piece if opens >= 0 else self.pieces[-1]
            self.pieces.append(piece)

    def lower(self, sequence: Sequence[RotorStep]) -> list[int]:
        """The forward, the turn, and then what the rest of the sequence asks for."""
        life, step = self.chain.lifetimes, self.chain.step
        num_stages = len(self.chain) - 1
        first, rest = sequence[:num_stages], sequence[num_stages:]
        values, saved, done = {0}, set[int](), num_stages
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
                done = move.stage
            else:
                self._note(move, values, saved)
                if isinstance(following, Forward):
                    self._pass_on(move.stage + 1, done, alive, ops)
            alive = self._trim(alive, self._held(values, saved), done)
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

    def _trim(self, alive: set[int], held: set[int], done: int) -> set[int]:
        """What stays: gradients, residents, and of the forward only what is held.

        `done` is the last stage whose backward has run.
        """
        born = self.chain.lifetimes.born
        if self.holds:
            held = held.union(self.chain.crossing[done])
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

    def _pass_on(self, cut: int, done: int, alive: set[int], ops: list[int]) -> None:
        """Make what crosses a cut, unless it belongs to a piece that cannot run now.

        Then its backward will pull what it needs when its own piece is back.
        """
        ops_of, pieces = self.chain.step.ops, self.pieces
        cone = missing_cone(self.chain.step, self.chain.crossing[cut], alive)
        # The last backward op to have run, or the turn.
        time = min(max(1, self.chain.times[done]), len(pieces)) - 1
        if all(ops_of[number].piece == pieces[time] for number in cone):
            self._run(cone, alive, ops)

    def _make(
        self, needed: Sequence[int] | frozenset[int], alive: set[int], ops: list[int]
    ) -> None:
        self._run(missing_cone(self.chain.step, needed, alive), alive, ops)

    def _run(self, cone: list[int], alive: set[int], ops: list[int]) -> None:
        ops.extend(cone)
        for number in cone:
            alive.update(self.chain.step.ops[number].writes)
