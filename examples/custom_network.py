"""Plan a network with branches, and check that its numbers stay the same.

    python examples/custom_network.py

You tell lowtide nothing about the network. It captures the step, and so it finds the
branches, the skips and the shared layers. The command line takes the same function:

    lowtide plan examples/custom_network.py:make_step --budget 60%
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import lowtide


class Branches(nn.Module):
    """Three paths over the same input, joined again, with a skip around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(channels, channels, 1)
        self.wide = nn.Conv2d(channels, channels, 5, padding=2)
        self.join = nn.Conv2d(3 * channels, channels, 1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.avg_pool2d(x, 3, stride=1, padding=1)
        paths = [functional.gelu(p) for p in (self.narrow(x), self.wide(x), pooled)]
        return x + functional.gelu(self.norm(self.join(torch.cat(paths, dim=1))))


class Network(nn.Module):
    """Several blocks of branches, of which the first is used twice."""

    def __init__(self, channels: int = 12, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(Branches(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(functional.dropout(x.mean(dim=(2, 3)), 0.2, self.training))


class Labels:
    """A loss that already has its labels."""

    def __init__(self, batch: int) -> None:
        self.labels = torch.arange(batch) % 10

    def __call__(self, scores: Tensor) -> Tensor:
        return functional.cross_entropy(scores, self.labels)


def make_step(batch: int = 4):
    """Return a model, a batch and a loss, as the command line expects."""
    torch.manual_seed(0)
    return Network(), torch.randn(batch, 3, 24, 24), Labels(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--report", type=Path, default=None)
    options = parser.parse_args()

    model, batch, loss = make_step()
    step = lowtide.profile(model, batch, loss=loss)
    plan = lowtide.plan(step, budget=options.budget, time_limit=3)
    print(plan)
    found = lowtide.verify(model, batch, plan=plan, loss=loss)
    found.raise_if_failed()
    print(f"{found.num_gradients} gradients, the loss and the buffers: equal bits")
    if options.report is not None:
        lowtide.report(step, plan, found).save(options.report)
        print(f"saved {options.report}")


if __name__ == "__main__":
    main()
