"""What several processes need, without starting any."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import lowtide
from lowtide.engine.handover import in_parts
from lowtide.engine.others import callable_of


def test_a_graph_in_parts_computes_the_same():
    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a = x * y
        b = a + x
        c = torch.tanh(b)
        return c, None, a, b * c

    x, y = torch.randn(4), torch.randn(4)
    module = fx.symbolic_trace(work)
    parts = [callable_of(part) for part in in_parts(module, [[1, 2], [0], [3]])]
    live = [x, y]
    found = []
    for part, count in zip(parts, (2, 1, 1), strict=True):
        made = list(part(live))
        assert live == []  # a part takes over what it starts from
        found.append(made[:count])
        live = made[count:]
    (none, a), (c,), (last,) = found
    assert live == []
    for value, expected in zip((c, none, a, last), work(x, y), strict=True):
        assert expected is None or torch.equal(value, expected)


def test_processes_can_meet_after_a_model_was_optimized():
    lowtide.optimize(nn.Linear(1, 1), budget="1 GiB")
    # What `init_process_group` does to dynamo.
    torch._dynamo.trace_rules.clear_lru_cache()


def test_the_first_fsdp_is_refused_with_the_reason():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(model)
    with pytest.raises(lowtide.LowtideError, match=r"flat ones.*fully_shard"):
        lowtide.optimize(model, budget="1 GiB")
