"""The models written here, which need only torch, and their loss.

`mlp` and `tiny_gpt` run in milliseconds: for tests and first tries.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lowtide.errors import InvalidArgumentError

# Of an auxiliary classifier beside the main one: Inception trains with this.
AUXILIARY_WEIGHT = 0.4


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """Mean cross entropy against fixed labels; classes are in dimension 1.

    A pair of outputs is a main and an auxiliary classifier.
    """

    labels: Tensor

    def __call__(self, output: Any) -> Tensor:
        if isinstance(output, tuple):
            main, auxiliary = output
            return self(main) + AUXILIARY_WEIGHT * self(auxiliary)
        return functional.cross_entropy(output, self.labels)


def mlp(
    name: str,
    *,
    batch: int,
    features: int | None,
    classes: int,
    width: int,
    layers: int,
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
        batch, sequence, width = stream.shape
        packed = self.query_key_value(self.norm_attention(stream))
        split = packed.view(batch, sequence, 3, self.heads, width // self.heads)
        query_key_value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            *query_key_value, is_causal=True, dropout_p=dropout
        )
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, width)
        stream = stream + self.drop(self.project(mixed))
        return stream + self.drop(self.feed_forward(self.norm_feed_forward(stream)))


class TinyGPT(nn.Module):
    """Scores for the next token; classes are in dimension 1, as cross entropy wants."""

    def __init__(
        self, *, vocab: int, sequence: int, layers: int, width: int, **block: Any
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(sequence, width))
        self.blocks = nn.Sequential(*(Block(width, **block) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        # One matrix reads tokens and scores them, as in GPT-2.
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
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


class UNet(nn.Module):
    """U-Net (Ronneberger, Fischer, Brox 2015), as it is commonly trained today.

    Convolutions are padded, so that the output has the size of the input, and each is
    followed by batch normalisation. The long skips from the way down to the way up keep
    large early activations alive until late: a good test for any planner.
    """

    def __init__(self, *, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = _two_convolutions(channels, width)
        self.shrink = nn.MaxPool2d(2)
        self.down = nn.ModuleList(
            _two_convolutions(small, large) for small, large in pairwise(widths)
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2)
            for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(
            _two_convolutions(2 * width, width) for width in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        skips = []
        for down in self.down:
            skips.append(features)
            features = down(self.shrink(features))
        for grow, up in zip(self.grow, self.up, strict=True):
            features = up(torch.cat((skips.pop(), grow(features)), dim=1))
        return self.head(features)


def _two_convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        layers += [
            nn.Conv2d(channels, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


def unet(
    name: str, *, batch: int, image: int, classes: int, depth: int, **sizes: int
) -> tuple[nn.Module, Tensor, CrossEntropy]:
    """A U-Net, images for it, and a random class for each pixel."""
    if image % 2**depth:
        raise InvalidArgumentError(
            f"image={image} of model {name!r}",
            f"it cannot be halved {depth} times",
            f"Use a multiple of {2**depth}, or a smaller depth",
        )
    model = UNet(classes=classes, depth=depth, **sizes)
    images = torch.randn(batch, sizes["channels"], image, image)
    return model, images, CrossEntropy(torch.randint(classes, (batch, image, image)))
