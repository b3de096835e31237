"""What several processes that train together have in common.

`budget` is that of one process. This module knows who exchanges gradients with whom,
what that takes, and how they come to one decision.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lowtide.engine.capture.piece import COLLECTIVE
from lowtide.errors import (
    BudgetTooSmallError,
    CaptureError,
    InvalidArgumentError,
    LowtideError,
    RankError,
)
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan


def exchange() -> Any:
    """The `DistributedDataParallel` that is being called, if there is one."""
    if not torch.distributed.is_available():
        return None
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module()


def inside_wrapper(model: Any) -> Any:
    """The module inside of `DistributedDataParallel`, where it is planned.

    What the wrapper itself does is exchange, and no part of a graph.
    """
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        while isinstance(model, DistributedDataParallel):
            model = model.module
    return model


def refuse_flat_parameters(model: Any) -> None:
    """Raise for a model of the first FSDP, before anything of it runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(model, nn.Module):
        return
    if any(isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules()):
        raise InvalidArgumentError(
            f"lowtide.optimize({type(model).__name__})",
            "FullyShardedDataParallel makes its parameters views of flat ones, whose "
            "memory it takes away and brings back behind the captured graph, so a "
            "recomputation could read what is not there",
            "Use torch.distributed.fsdp.fully_shard, which is planned block by block",
        )


def is_divided_twice(model: Any) -> bool:
    """Whether `fully_shard` divides parameters that are parts of divided layers.

    torch captures their blocks with symbols that belong to nothing, so most graphs
    could not be planned, and the step would need more than without lowtide.
    """
    if not isinstance(model, nn.Module):
        return False
    parts: list[Any] = [p for p in model.parameters() if _is_part(p)]
    return any(sum(not q.is_replicate() for q in p.placements) > 1 for p in parts)


def bucket_bytes(modules: Sequence[nn.Module]) -> int:
    """Bytes of the buckets in which gradients are exchanged, beside the gradients.

    They are there from the first step to the last. Gradients that are views of them
    are counted as gradients.
    """
    wrapper = exchange()
    if wrapper is None:
        return 0
    exchanged = [p for p in wrapper.module.parameters() if p.requires_grad]
    if wrapper.gradient_as_bucket_view and any(p.grad is not None for p in exchanged):
        return 0
    return sum(p.numel() * p.element_size() for p in exchanged)


class Agreement:
    """What processes that train one model together decide together, once.

    Before the first step has run, all of them are planning. Then the first of them
    plans, the others take its schedule where their graph is the same and it keeps their
    own budget, and nobody goes on before all have a plan; what stops one is raised by
    all. Later decisions may come at different times, since a new shape may reach one
    process and not another, so nobody waits; only graphs in which processes talk to
    each other are decided together then, too.

    All of this goes through the store that the processes met at, never through an
    exchange of tensors, which would have to come at the same time everywhere.
    """

    def __init__(self) -> None:
        self.number = -1
        self.turn = 0
        self.searches = 0
        self.group: Group | None = None

    @contextmanager
    def deciding(
        self, step: StepGraph, modules: Sequence[nn.Module], *, is_first: bool
    ) -> Iterator[None]:
        """Decide in this block how a graph runs, all together if it has to be."""
        must = any(op.once == COLLECTIVE for op in step.ops)
        group = group_of(modules) if must or is_first else None
        if group is None:
            yield
            return
        if self.number < 0:
            self.number = next(_NUMBERS)
        self.group, self.searches = group.at(f"{self.number}/{self.turn}"), 0
        self.turn += 1
        try:
            self.group.tell("graph", step.fingerprint)
            if must:
                self.check_graphs(self.group, step)
            yield
        except Exception as error:
            # One that cannot be captured goes on in another way, and trains.
            ends = isinstance(error, LowtideError) and not isinstance(
                error, CaptureError
            )
            self.group.tell("end", str(error) if ends else "")
            raise
        else:
            self.group.tell("end", "")
            for rank, text in self.group.hear("end"):
                if text:
                    raise RankError(rank, text)
        finally:
            self.group = None

    def check_graphs(self, group: Group, step: StepGraph) -> None:
        """Raise if processes that talk to each other have different graphs."""
        heard = dict(group.hear("graph"))
        others = [rank for rank, text in heard.items() if text != step.fingerprint]
        if others:
            named = ", ".join(map(str, others))
            raise RankError(
                group.rank,
                f"its graph {step.fingerprint} is not that of the ranks {named}, and "
                "they talk to each other in it",
            )

    def search(
        self, step: StepGraph, limit_bytes: int | None, search: Callable[[], Plan]
    ) -> Plan:
        """The first one's plan, if others are planning too and it serves here.

        Without a limit a low plan is asked for, and any serves.
        """
        group = self.group
        if group is None:
            return search()
        key = f"plan/{self.searches}"
        self.searches += 1
        if group.is_first:
            try:
                plan = search()
            except BudgetTooSmallError:
                group.tell(key, "")
                raise
            group.tell(key, json.dumps(plan.to_dict()))
            return plan
        told = group.first_says(key, "end")
        if not told:
            return search()
        found = Plan.from_dict(json.loads(told))
        if found.fingerprint != step.fingerprint:
            return search()
        plan = make_plan(
            step,
            found.schedule,
            planner=found.planner,
            budget_bytes=limit_bytes,
            proof=found.proof,
        )
        fits = limit_bytes is None or plan.peak_bytes <= limit_bytes
        return plan if fits else search()


_NUMBERS = itertools.count()
# How long a process waits for another that may be planning, in seconds.
_PATIENCE = 600.0


@dataclass(frozen=True)
class Group:
    """Processes that train one model, and what they tell each other."""

    ranks: tuple[int, ...]
    rank: int
    place: str = ""

    @property
    def is_first(self) -> bool:
        return self.rank == self.ranks[0]

    def at(self, place: str) -> Group:
        return replace(self, place=f"lowtide/{'-'.join(map(str, self.ranks))}/{place}")

    def tell(self, what: str, text: str) -> None:
        """Say something to all others."""
        _store().set(f"{self.place}/{what}/{self.rank}", text)

    def hear(self, what: str) -> Iterator[tuple[int, str]]:
        """What each of the others says, in the order of their ranks."""
        for rank in self.ranks:
            if rank != self.rank:
                yield rank, self.wait_for(rank, what)

    def first_says(self, what: str, end: str) -> str:
        """What the first one says, or nothing if it has come to its end before."""
        return self.wait_for(self.ranks[0], what, end)

    def wait_for(self, rank: int, wanted: str, *others: str) -> str:
        """What a rank says of what is wanted, unless it says another thing before."""
        keys = [f"{self.place}/{what}/{rank}" for what in (wanted, *others)]
        store, pause, until = _store(), 0.001, time.monotonic() + _PATIENCE
        while True:
            if store.check(keys[:1]):
                return store.get(keys[0]).decode()
            if any(store.check([key]) for key in keys[1:]):
                return ""
            if time.monotonic() > until:
                raise RankError(rank, f"it has said nothing for {_PATIENCE:.0f} s")
            time.sleep(pause)
            pause = min(0.1, 2 * pause)


def _store() -> Any:
    # NOTE(torch>=2.13): the store that the processes met at has no public name.
    return torch.distributed.distributed_c10d._get_default_store()


def group_of(modules: Sequence[nn.Module]) -> Group | None:
    """The processes that train these modules together, if there are others."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_backend() == "fake":
        return None
    wrapper = exchange()
    if wrapper is not None:
        ranks = distributed.get_process_group_ranks(wrapper.process_group)
    else:
        parts: list[Any] = [p for m in modules for p in m.parameters() if _is_part(p)]
        meshes = [p.device_mesh for p in parts]
        ranks = sorted({r for mesh in meshes for r in mesh.mesh.flatten().tolist()})
    if len(ranks) < 2:
        return None
    return Group(tuple(ranks), distributed.get_rank())


def _is_part(parameter: nn.Parameter) -> bool:
    """Whether a parameter is a part of a larger one that other processes hold."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    return isinstance(parameter, sys.modules["torch.distributed.tensor"].DTensor)


def is_sharded(modules: Sequence[nn.Module]) -> bool:
    """Whether parameters are parts of larger ones that other processes hold."""
    return any(_is_part(p) for m in modules for p in m.parameters())
