"""Predicted peaks of a rank beside those that torchtitan has published.

`python benchmarks/torchtitan.py` predicts what Llama-3 8B needs on 8 and on 128 ranks
of `fully_shard`, two sequences of 8,192 tokens a rank, without compilation, with
torchtitan's selective activation checkpointing: tables 1 and 3, rows "FSDP", of
https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md
(torchtitan 9dec370, `train_configs/llama3_8b.toml`). Published is what the allocator
has reserved, predicted what is alive, so the first is the larger one. The model here
computes what theirs does. Kept of each block are its input, what attention returns,
and every second product; of the last product torchtitan keeps a copy that nobody
reads. Results go to `benchmarks/results/torchtitan.json`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

import lowtide
from lowtide.step.blocks import blocks_of
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import from_kept, saved_by_baseline

RESULTS = Path(__file__).parent / "results" / "torchtitan.json"
GIB = 1 << 30
WIDTH, HIDDEN, LAYERS, HEADS, GROUPS, VOCAB = 4096, 14336, 32, 32, 8, 128256
BATCH, TOKENS = 2, 8192
PUBLISHED_GIB = {8: 82.4, 128: 67.0}


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return scaled.type_as(x) * self.weight


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary positions, computed in 32 bits."""
    one, two = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - two * sin, one * sin + two * cos), -1).type_as(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        narrow = WIDTH // HEADS * GROUPS
        self.first_norm, self.second_norm = Norm(), Norm()
        self.q, self.k = linear(WIDTH, WIDTH), linear(WIDTH, narrow)
        self.v, self.out = linear(WIDTH, narrow), linear(WIDTH, WIDTH)
        self.gate, self.up = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN)
        self.down = linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        y = self.first_norm(x)
        q, k, v = (
            p(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        q, k = turned(q, angles), turned(k, angles)
        k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.second_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def linear(size: int, made: int) -> nn.Linear:
    return nn.Linear(size, made, bias=False)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.output = Norm(), linear(WIDTH, VOCAB)
        half = WIDTH // HEADS // 2
        self.register_buffer("angles", torch.empty(TOKENS, half, dtype=torch.float32))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        scores = self.output(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def profiled(ranks: int) -> StepGraph:
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)
        model = Llama()
        tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        batch = {"tokens": tokens, "targets": tokens}
    torch.set_default_dtype(torch.float32)
    how: dict[str, Any] = {"how": "estimate", "device": "h100"}
    return lowtide.profile(model, batch, mesh={"dp": ranks}, **how)


def as_eager(step: StepGraph) -> StepGraph:
    """The loss as eager computes it: its dense gradient, and nothing in place."""

    def op_of(op: Any) -> Any:
        if op.over < 0:
            return op
        more = step.sizes[op.over]
        return replace(op, over=-1, scratch_bytes=op.scratch_bytes + more)

    return replace(step, ops=tuple(op_of(op) for op in step.ops))


def kept_by_torchtitan(step: StepGraph) -> set[int]:
    """Storages that its selective checkpointing keeps, and all outside of blocks."""
    saved = set(saved_by_baseline(step))
    kept = set(saved)
    for block in blocks_of(step):
        own = [step.ops[i] for i in block.forward]
        kept.difference_update(s for op in own for s in op.writes)
        products = 0
        for op in own:
            products += op.target.startswith("aten.mm")
            is_odd = op.target.startswith("aten.mm") and products % 2
            if is_odd or "attention" in op.target:
                kept.update(op.writes)
        # What the next block begins with.
        kept.update(own[-1].writes)
    return kept


def main() -> None:
    rows: list[dict[str, Any]] = []
    for ranks, published in PUBLISHED_GIB.items():
        step = as_eager(profiled(ranks))
        schedule = from_kept(step, kept_by_torchtitan(step))
        unread = LAYERS * BATCH * TOKENS * WIDTH * 2
        peak = lowtide.simulate(step, schedule).peak_bytes + unread
        row = {
            "ranks": ranks,
            "published_reserved_gib": published,
            "predicted_alive_gib": round(peak / GIB, 1),
            "difference": round(peak / GIB / published - 1, 3),
        }
        print(row, flush=True)
        rows.append(row)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
