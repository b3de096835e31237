"""What several processes that train together have in common.

`budget` is that of one process. This module knows who exchanges gradients with whom,
what that takes, and how they come to one decision.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lowtide.engine.capture.piece import COLLECTIVE
from lowtide.engine.ranks.company import Group, met, show_life
from lowtide.errors import BudgetTooSmallError, InvalidArgumentError, RankError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import fitted


def exchange() -> Any:
    """The `DistributedDataParallel` that is being called, if there is one."""
    return DistributedDataParallel._get_active_ddp_module()


def inside_wrapper(model: Any) -> Any:
    """The module inside of `DistributedDataParallel`, where it is planned.

    What the wrapper itself does is exchange, and no part of a graph.
    """
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
    parts = _parts_in([model]) if isinstance(model, nn.Module) else []
    return any(sum(not q.is_replicate() for q in p.placements) > 1 for p in parts)


def bucket_bytes() -> int:
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
    own budget, and nobody goes on before all have a plan and have run their forward;
    what stops one is raised by all. One that goes another way, because its graph cannot
    be captured, say, is not waited for. Later decisions may come at different times,
    since a new shape may reach one process and not another, so nobody waits; only
    graphs in which processes talk to each other are decided together then, too; where
    there are such graphs, the step `exchanges`.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.number = -1
        self.calls = 0
        self.searches = 0
        self.has_begun = self.is_deciding = self.exchanges = False
        self.group: Group | None = None

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Plan a call in this block and run it: the first one together."""
        together = self.exchanges or not self.has_begun
        group = group_of(self.modules) if together else None
        self.has_begun = True
        if group is None:
            yield
            return
        show_life()
        if self.number < 0:
            self.number = next(_NUMBERS)
        self.calls += 1
        group = replace(group, number=self.number)
        self.group = group.goes_to((self.calls, 0, 0))
        end = self.calls + 1, 0, 0
        try:
            yield
        except Exception as error:
            with suppress(RankError):
                group.goes_to(end, error)
            raise
        else:
            group.goes_to(end)
            last = replace(group, where=(self.calls, sys.maxsize, 0))
            last.wait_for_all("nothing")
        finally:
            self.group = None

    def go_down(self, reason: str) -> None:
        """Tell the others that this call takes the next rung of the ladder."""
        log.info("this is not the way: %s", reason)
        if self.group is not None:
            call, rung, _ = self.group.where
            self.group = self.group.goes_to((call, rung + 1, 0))

    @contextmanager
    def deciding(self, steps: Sequence[StepGraph]) -> Iterator[None]:
        """Decide in this block how graphs run, all together if it has to be."""
        must = any(op.once == COLLECTIVE for step in steps for op in step.ops)
        self.exchanges |= must
        if self.group is None and must and group_of(self.modules) is not None:
            with self.calling(), self.deciding(steps):
                yield
            return
        if self.group is None:
            yield
            return
        call, rung, turn = self.group.where
        self.group = group = self.group.goes_to((call, rung, turn + 1))
        self.searches, self.is_deciding = 0, True
        prints = ", ".join(step.fingerprint for step in steps)
        group.tell("graph", prints)
        if must:
            self.check_graphs(group, prints)
        try:
            yield
        finally:
            self.is_deciding = False
        group.tell("end", "")
        self.group = group.goes_to((call, rung, turn + 2))
        group.wait_for_all("end")

    def check_graphs(self, group: Group, prints: str) -> None:
        """Raise if processes that talk to each other have different graphs."""
        heard = group.wait_for_all("graph")
        others = [rank for rank, text in heard.items() if text != prints]
        if others:
            named = ", ".join(map(str, others))
            raise RankError(
                group.rank,
                f"its graph {prints} is not that of the ranks {named}, and "
                "they talk to each other in it",
            )

    def search(
        self, step: StepGraph, limit_bytes: int | None, search: Callable[[], Plan]
    ) -> Plan:
        """The first one's plan, if others are planning too and it serves here.

        Without a limit a low plan is asked for, and any serves.
        """
        group = self.group
        if group is None or not self.is_deciding:
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
        told = group.wait_for(group.ranks[0], key)
        if not told:
            return search()
        found = Plan.from_dict(json.loads(told))
        if found.fingerprint != step.fingerprint:
            return search()
        return fitted(step, found, limit_bytes) or search()


_NUMBERS = itertools.count()
log = logging.getLogger("lowtide.run")


def group_of(modules: Sequence[nn.Module]) -> Group | None:
    """The processes that train these modules together, if there are others."""
    if not met():
        return None
    distributed = torch.distributed
    wrapper = exchange()
    if wrapper is not None:
        ranks = distributed.get_process_group_ranks(wrapper.process_group)
    else:
        meshes = [p.device_mesh for p in _parts_in(modules)]
        ranks = sorted({r for mesh in meshes for r in mesh.mesh.flatten().tolist()})
    if len(ranks) < 2:
        return None
    return Group(tuple(ranks), distributed.get_rank())


def is_sharded(modules: Sequence[nn.Module]) -> bool:
    """Whether parameters are parts of larger ones that other processes hold."""
    return bool(_parts_in(modules))


def _parts_in(modules: Sequence[nn.Module]) -> list[Any]:
    """The parameters that are parts of larger ones that other processes hold."""
    loaded = sys.modules.get("torch.distributed.tensor")
    if loaded is None:
        return []
    parameters = (p for m in modules for p in m.parameters())
    return [p for p in parameters if isinstance(p, loaded.DTensor)]
