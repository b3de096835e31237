"""Inductor, with a partitioner of ours: the backend of planned compiled steps.

NOTE(torch>=2.13,<2.16): `custom_partitioner_fn` gives us the joint graph behind
Inductor's own passes, in which random numbers are functions of seeds; `inner_compile`
is called with each half.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.engine.graphs.rewrite import Halves, Orders, keep_everything
from lowtide.engine.graphs.watch import Watch
from lowtide.engine.inductor.emit import split_compiled
from lowtide.engine.inductor.hold import as_planned, excess_bytes, freeing_at_once
from lowtide.engine.inductor.piece import CompiledPiece, read_compiled
from lowtide.step.format import format_bytes
from lowtide.step.graph import Kind, Phase

log = logging.getLogger("lowtide.run")

# How many plans are made for one graph, each with less room, until one holds.
MOST_PLANS = 4

Decide = Callable[[CompiledPiece], Orders]


class Partitioner(CustomPartitionerFn):
    """Cuts a joint graph as it is decided.

    `piece` is what it was then; if it `is_held`, Inductor has to follow the plan.
    """

    piece: CompiledPiece | None = None
    is_held = False

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
        self.watch.stop_observing()
        halves = self.planned_halves(piece)
        saved = set(halves.saved)
        piece.kept_bytes = sum(
            piece.storages[s].nbytes
            for node, s in piece.value_of.items()
            if node.name in saved and not piece.storages[s].resident
        )
        return halves.forward, halves.backward

    def planned_halves(self, piece: CompiledPiece) -> Halves:
        """The graphs of a plan that hold its peak with Inductor's kernels.

        It is asked first what it would launch on its own. If that needs more than the
        plan says, it has to launch what the plan says; if that needs more too, another
        plan is made with so much less.
        """
        for _ in range(MOST_PLANS):
            with _disable_current_modes(), torch.no_grad():
                orders = self.decide(piece)
            halves = split_compiled(piece, orders)
            self.is_held = False
            if orders == keep_everything(piece):
                break
            if excess_bytes(piece, orders, halves) <= 0:
                break
            self.is_held = True
            with as_planned():
                excess = excess_bytes(piece, orders, halves)
            if excess <= 0:
                break
            log.info("its kernels need %s more than planned", format_bytes(excess))
            piece.beside_bytes += excess
        return halves

    def uuid(self) -> Any:
        """None, so that Inductor keeps nothing that depends on the budget."""
        return None

    def __reduce__(self) -> Any:
        # What torch makes keys of its caches from.
        return str, (uuid4().hex,)


def compile_by_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], partitioner: Partitioner
) -> Callable[..., Any]:

    def inner(module: fx.GraphModule, inputs: Any, **given: Any) -> Any:
        # What it compiles does not depend on how the graph came about.
        held = as_planned() if partitioner.is_held else nullcontext()
        with config.patch(custom_partitioner_fn=None), held, freeing_at_once():
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
