"""Losses that carry their own labels, so that they map an output to a scalar."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Of an auxiliary classifier beside the main one: Inception trains with this.
AUXILIARY_WEIGHT = 0.4


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """Mean cross entropy against fixed labels; classes are in dimension 1.

    A pair of outputs is a main and an auxiliary classifier.
    """

    labels: Tensor

    def __call__(self, output: Any) -> Tensor:
        """The loss of `output`."""
        if isinstance(output, tuple):
            main, auxiliary = output
            return self(main) + AUXILIARY_WEIGHT * self(auxiliary)
        return functional.cross_entropy(output, self.labels)


@dataclass(frozen=True, eq=False)
class OutputSum:
    """The sum of all outputs: no labels, as in published memory benchmarks."""

    def __call__(self, output: Any) -> Tensor:
        """The loss of `output`."""
        if isinstance(output, tuple):
            return torch.stack([part.sum() for part in output]).sum()
        return output.sum()


def classification(kind: str, batch: int, classes: int) -> CrossEntropy | OutputSum:
    """The loss of a classifier, with one random label for each sample."""
    if kind == "sum":
        return OutputSum()
    return CrossEntropy(torch.randint(classes, (batch,)))
