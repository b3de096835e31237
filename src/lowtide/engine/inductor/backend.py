"""Inductor, with a partitioner of ours: the backend of planned compiled steps.

NOTE(torch>=2.13,<2.14): `custom_partitioner_fn` gives us the joint graph behind
Inductor's own passes, in which random numbers are functions of seeds; `inner_compile`
is called with each half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.engine.inductor.emit import split_compiled
from lowtide.engine.inductor.piece import CompiledPiece, read_compiled
from lowtide.engine.rewrite import Orders
from lowtide.engine.watch import Watch
from lowtide.step.graph import Kind, Phase

Decide = Callable[[CompiledPiece], Orders]


class Partitioner(CustomPartitionerFn):
    """Cuts a joint graph as it is decided; `piece` is what it was then."""

    piece: CompiledPiece | None = None

    def __init__(
        self,
        decide: Decide,
        watch: Watch,
        kinds: dict[int, Kind],
        names: dict[int, str],
    ) -> None:
        self.decide, self.watch = decide, watch
        self.kinds, self.names = kinds, names

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **given: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward = min_cut_rematerialization_partition(
            gm, joint_inputs, **given
        )
        piece = self.piece = read_compiled(
            forward,
            backward,
            num_outputs=given["num_fwd_outputs"],
            kinds=self.kinds,
            names=self.names,
        )
        self.watch.graphs += 1
        with _disable_current_modes(), torch.no_grad():
            orders = self.decide(piece)
        halves = split_compiled(piece, orders)
        saved = set(halves.saved)
        piece.kept_bytes = sum(
            piece.storages[s].nbytes
            for node, s in piece.value_of.items()
            if node.name in saved and not piece.storages[s].resident
        )
        return halves.forward, halves.backward

    def uuid(self) -> Any:
        """None, so that Inductor keeps nothing that depends on the budget."""
        return None


def compile_by_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], partitioner: Partitioner
) -> Callable[..., Any]:

    def inner(module: fx.GraphModule, inputs: Any, **given: Any) -> Any:
        # What it compiles does not depend on how the graph came about.
        with config.patch(custom_partitioner_fn=None):
            made: Any = compile_fx_inner(module, inputs, **given)
        piece, watch = partitioner.piece, partitioner.watch
        if piece is None:
            watch.unplanned += 1
            return made
        phase: Phase = "backward" if given.get("is_backward") else "forward"
        run = made.current_callable
        made.current_callable = lambda args: watch.run(piece, phase, args, run)
        return made

    patches = {"custom_partitioner_fn": partitioner}
    run: Any = compile_fx(gm, list(example_inputs), inner, config_patches=patches)

    def call(*args: Any) -> Any:
        outputs = run(*args)
        if partitioner.piece is not None:
            partitioner.watch.hold(partitioner.piece, outputs)
        return outputs

    return call
