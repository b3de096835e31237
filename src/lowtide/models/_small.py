"""Models that need only torch and run in milliseconds: for tests and first tries."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lowtide.errors import InvalidArgumentError
from lowtide.models._loss import CrossEntropy


def mlp(
    name: str,
    *,
    batch: int,
    features: int | None,
    width: int,
    layers: int,
    classes: int,
) -> tuple[nn.Module, Tensor, CrossEntropy]:
    """Hidden layers with GELU between them, then a linear classifier."""
    sizes = [width if features is None else features, *[width] * layers]
    hidden: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        hidden += [nn.Linear(size_in, size_out), nn.GELU()]
    model = nn.Sequential(*hidden, nn.Linear(width, classes))
    labels = torch.randint(classes, (batch,))
    return model, torch.randn(batch, sizes[0]), CrossEntropy(labels)


class Block(nn.Module):
    """Causal self-attention and a feed-forward part, each added to the stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """The stream after this block."""
        batch, sequence, width = stream.shape
        packed = self.query_key_value(self.norm_attention(stream))
        split = packed.view(batch, sequence, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
        )
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, width)
        stream = stream + self.drop(self.project(mixed))
        return stream + self.drop(self.feed_forward(self.norm_feed_forward(stream)))


class TinyGPT(nn.Module):
    """Scores for the next token; classes are in dimension 1, as cross entropy wants."""

    def __init__(
        self,
        *,
        vocab: int,
        sequence: int,
        layers: int,
        width: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(sequence, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        # One matrix reads tokens and scores them, as in GPT-2.
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of shape (batch, vocab, sequence)."""
        stream = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(stream))).transpose(1, 2)


def tiny_gpt(
    name: str, *, batch: int, sequence: int, vocab: int, **blocks: Any
) -> tuple[nn.Module, Tensor, CrossEntropy]:
    """A small GPT and random text; each position is to predict the token after it."""
    check_heads(name, blocks["width"], blocks["heads"])
    model = TinyGPT(vocab=vocab, sequence=sequence, **blocks)
    text = torch.randint(vocab, (batch, sequence + 1))
    return model, text[:, :-1].contiguous(), CrossEntropy(text[:, 1:].contiguous())


def check_heads(name: str, width: int, heads: int) -> None:
    """Raise if the residual stream cannot be divided among the attention heads."""
    if width % heads:
        raise InvalidArgumentError(
            f"width={width} of model {name!r}",
            f"it cannot be divided among {heads} heads",
            f"Use a multiple of {heads}",
        )
