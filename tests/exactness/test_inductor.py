"""Compiled steps under a budget: what Inductor computes, bit for bit, in less memory.

Writing and compiling C++ takes most of a minute, so what is compiled for real is slow.
Reading what Inductor would launch is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.costs.machine import count_allocations
from lowtide.engine.graphs.compile import compiled
from lowtide.engine.graphs.rewrite import Orders, keep_everything, orders_of
from lowtide.engine.graphs.watch import Watch
from lowtide.engine.inductor import backend
from lowtide.engine.inductor.emit import split_compiled
from lowtide.engine.inductor.hold import as_planned
from lowtide.engine.inductor.kernels import lower
from lowtide.engine.inductor.piece import CompiledPiece
from lowtide.engine.planning.prepare import prepare
from lowtide.errors import BudgetTooSmallError, InvalidArgumentError, LowtideWarning
from lowtide.step.schedule import crossing

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


class Block(nn.Module):
    """A transformer's block with dropout."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.attend(self.norms[0](x)).view(batch, length, 3, 4, width // 4)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(x.shape)
        return x + self.mlp(self.norms[1](x))


class Language(nn.Module):
    """Tokens in, loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Image(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 8, 8)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in pairwise(widths)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def language() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Language(), torch.randint(0, 100, (8, 32))


def image() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Image(), torch.randn(4, 3, 24, 24)


class _Enough(BaseException):
    """What was to be seen has been seen; nothing is compiled."""


def seen(
    model: nn.Module, batch: torch.Tensor, look: Callable[[CompiledPiece], Any]
) -> Any:
    """What `look` finds in the piece that Inductor would compile."""
    found: list[Any] = []

    def decide(piece: Any) -> Orders:
        found.append(look(piece))
        raise _Enough

    call = compiled(model, decide, Watch(), fullgraph=True, inner="inductor")
    with pytest.raises(_Enough):
        call(batch)
    return found[0]


def most_bytes(piece: CompiledPiece, orders: Orders) -> int:
    """The peak of the graphs that are emitted, in the order that Inductor gives them.

    Counted here from nothing but its kernels: each buffer from its first writer to its
    last reader, what is returned to the end, what is saved until it is read last.
    """
    halves = split_compiled(piece, orders)
    resident = {node.name for node in piece.primals}
    peaks: list[int] = []
    for module, is_backward in ((halves.forward, False), (halves.backward, True)):
        lowered = lower(module, is_backward=is_backward)
        sizes = {
            node.name: node.meta["val"].untyped_storage().nbytes()
            for node in module.graph.find_nodes(op="placeholder")
        }
        last = {name: -1 for name in sizes}
        readers: dict[str, set[int]] = {}
        for number, kernel in enumerate(lowered.kernels):
            for buffer in kernel.writes:
                # Those who write a part of it do not know its size.
                sizes[buffer.name] = max(sizes.get(buffer.name, 0), buffer.nbytes)
                last[buffer.name] = number
            for name in kernel.reads:
                last[name] = number
                readers.setdefault(name, set()).add(number)
        last |= {name: len(lowered.kernels) for name in lowered.outputs}
        given = [n for n in sizes if n in last and n not in resident]
        begin = {n: -1 for n in given}
        for number, kernel in reversed(list(enumerate(lowered.kernels))):
            begin |= {b.name: number for b in kernel.writes}
        # What only the kernel itself reads is never allocated.
        real = [
            n
            for n in given
            if begin[n] < 0 or last[n] > begin[n] or readers.get(n, set()) - {begin[n]}
        ]
        peaks += [
            sum(sizes[n] for n in real if begin[n] <= at <= last[n])
            for at in range(-1, len(lowered.kernels))
        ]
    return max(peaks) + sum(s.nbytes for s in piece.storages if s.resident)


@pytest.mark.parametrize(
    "make", [image, pytest.param(language, marks=pytest.mark.slow)]
)
def test_a_plan_is_what_inductor_will_run(make: Any) -> None:
    model, batch = make()

    def look(piece: CompiledPiece) -> None:
        step = prepare(piece, [model])
        plan = lowtide.plan(step, budget=step.floor_bytes, time_limit=2)
        orders = orders_of(plan, piece)
        saved = set(split_compiled(piece, orders).saved)
        # A copy in another layout is made where it is read, from what is there then.
        assert saved - {node.name for node in piece.primals} <= {
            step.storages[s].name
            for s in crossing(step, plan.ops)
            if not step.storages[s].resident
        }
        assert plan.peak_bytes < 0.85 * step.baseline_peak_bytes
        with as_planned():
            assert most_bytes(piece, orders) <= plan.peak_bytes

    seen(model, batch, look)


class Parts(nn.Module):
    """Buffers of which only parts are read, and some that are written in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.Linear(16, 48)
        self.convolve = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.convolve(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        q, k, v = self.attend(y).view(len(x), -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        z = nn.functional.scaled_dot_product_attention(q, k, v)
        return (y + z.transpose(1, 2).reshape(y.shape)).square().mean()


def test_what_is_kept_is_computed_once() -> None:
    torch.manual_seed(0)
    model, batch = Parts(), torch.randn(2, 3, 16, 16)

    def look(piece: CompiledPiece) -> None:
        halves = split_compiled(piece, keep_everything(piece))
        for ours, theirs in (
            (halves.forward, piece.forward),
            (halves.backward, piece.backward),
        ):
            for target in (aten.addmm.default, aten.cat.default, ATTENTION):
                number = len(theirs.graph.find_nodes(op="call_function", target=target))
                found = ours.graph.find_nodes(op="call_function", target=target)
                assert len(found) == number, target
        assert piece.step is not None
        attention = [op for op in piece.step.ops if str(ATTENTION) in op.target]
        assert [op.once for op in attention if op.phase == "forward"] == [""]
        joined = [s.nbytes for s in piece.step.storages if s.name == "cat"]
        assert joined == [2 * 17 * 16 * 4]

    seen(model, batch, look)


@pytest.mark.slow
def test_random_numbers_can_be_made_again_and_their_seeds_cannot() -> None:
    model, batch = language()

    def look(piece: CompiledPiece) -> tuple[list[str], list[str]]:
        assert piece.step is not None
        seeds = [op.once for op in piece.step.ops if "inductor_seeds" in op.signature]
        masks = [
            op.once
            for op in piece.step.ops
            if "inductor_random" in op.signature and op.phase == "forward"
        ]
        return seeds, masks

    seeds, masks = seen(model, batch, look)
    assert len(seeds) == 1
    assert all(seeds)
    assert masks
    assert not any(masks)


def test_an_unknown_inner_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'eager' or 'inductor'"):
        lowtide.optimize(nn.Linear(2, 2), budget="1 GiB", inner="triton")  # type: ignore


def test_a_budget_below_the_floor_is_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled all the same")

    monkeypatch.setattr(backend, "compile_fx_inner", refuse)
    model, batch = image()
    lowtide.optimize(model, budget="2 KiB", inner="inductor")
    with pytest.raises(BudgetTooSmallError):
        model(batch)


@pytest.mark.slow
def test_without_inductor_the_ops_of_torch_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no C++ compiler")

    model, batch = image()
    plain = copy.deepcopy(model)
    plain(batch).backward()
    monkeypatch.setattr(backend, "compile_fx_inner", fail)
    lowtide.optimize(model, budget="90%", inner="inductor")
    with pytest.warns(LowtideWarning, match="Inductor cannot compile"):
        model(batch).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert same_bits(ours.grad, theirs.grad)


def steps(call: Any, model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """Losses, gradients, buffers and the generator after two steps."""
    torch.manual_seed(7)
    found: list[torch.Tensor] = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        loss = call(batch)
        loss.backward()
        found += [loss.detach(), *(p.grad for p in model.parameters())]
    return [*found, *(b.clone() for b in model.buffers()), torch.get_rng_state()]


@pytest.mark.slow
@pytest.mark.parametrize("make", [language, image])
def test_a_compiled_step_has_the_bits_of_inductor(make: Any) -> None:
    model, batch = make()
    plain, planned = copy.deepcopy(model), copy.deepcopy(model)
    expected = steps(torch.compile(plain, dynamic=False), plain, batch)
    floor = seen(model, batch, lambda piece: prepare(piece, [model]).floor_bytes)
    lowtide.optimize(planned, budget=int(1.05 * floor), inner="inductor")
    actual = steps(planned, planned, batch)
    assert all(map(same_bits, actual, expected))
    call = lowtide.planned(planned)
    assert call.plans[-1].recomputed

    def run() -> None:
        with torch.enable_grad():
            planned(batch).backward()

    planned.zero_grad(set_to_none=True)
    call.learning.end()  # a thread has one profiler
    with call.unwatched():
        _, allocated = count_allocations(run, torch.device("cpu"))
    resident = sum(v.nbytes for v in (*model.parameters(), *model.buffers(), batch))
    assert resident + allocated <= call.plans[-1].budget_bytes
