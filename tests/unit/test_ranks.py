"""What several processes need, without starting any."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import lowtide
from lowtide.engine.graphs.handover import in_parts
from lowtide.engine.graphs.others import callable_of
from lowtide.engine.ranks import company
from lowtide.engine.ranks.company import Group


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


def test_what_is_returned_as_a_view_is_handed_over_when_it_is_made():
    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.ops.aten.mm.default(x, x)
        b = torch.ops.aten.mm.default(a, x)
        c = torch.ops.aten.mm.default(b, x)
        views = [torch.ops.aten.t.default(each) for each in (c, b, a)]
        return (*views,)

    module = fx.symbolic_trace(work)
    x = torch.randn(3, 3)
    parts = in_parts(module, [[2], [1], [0]])
    live, found = [x], []
    for part in parts:
        ops = [n.target for n in part.graph.nodes if n.op == "call_function"]
        assert ops == [torch.ops.aten.mm.default, torch.ops.aten.t.default]
        first, *live = callable_of(part)(live)
        found.insert(0, first)
    assert all(map(torch.equal, found, work(x)))


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


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[Group, Group]:
    """Two ranks at a store of their own."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(company, "_store", lambda: store)
    monkeypatch.setattr(company, "_SILENCE", 0.05)
    monkeypatch.setattr(company, "_PATIENCE_AT_START", 0.05)
    groups = [Group((0, 1), rank, where=(1, 0, 1)) for rank in (0, 1)]
    return groups[0], groups[1]


def test_a_rank_hears_what_another_says(pair: tuple[Group, Group]):
    one, other = pair
    other.goes_to((1, 0, 1)).tell("plan", "this")
    other.goes_to((1, 1, 0))
    assert one.wait_for(1, "plan") == "this"


def test_a_rank_that_goes_another_way_is_not_waited_for(pair: tuple[Group, Group]):
    one, other = pair
    assert one.wait_for(1, "plan") is None  # it never came
    other.goes_to((1, 1, 0))
    assert one.wait_for(1, "plan") is None


def test_what_stops_a_rank_is_said_by_the_others(pair: tuple[Group, Group]):
    one, other = pair
    other.goes_to((2, 0, 0), ValueError("a bad batch"))
    with pytest.raises(lowtide.RankError, match=r"rank 1 .* ValueError: a bad batch\."):
        one.wait_for(1, "plan")
    # A third rank that stops because of it names the one that began.
    other.goes_to((2, 0, 0), lowtide.RankError(2, "it has no room", "Make some"))
    with pytest.raises(lowtide.RankError, match=r"rank 2 .* it has no room\. Make"):
        one.wait_for(1, "plan")


def test_a_rank_that_is_silent_or_gone_is_named(pair: tuple[Group, Group]):
    one, other = pair
    other.goes_to((1, 0, 1))
    company._store().add("lowtide/alive/1", 1)
    with pytest.raises(lowtide.RankError, match=r"rank 1 .* no sign of life"):
        one.wait_for(1, "plan")
    company._store().set("lowtide/gone/1", "")
    with pytest.raises(lowtide.RankError, match=r"rank 1 .* has ended"):
        one.wait_for(1, "plan")
