"""Train a ResNet within a budget, on images as small as those of CIFAR-10.

    python examples/train_images.py --budget 75%

The script makes its own images, so nothing is downloaded. It loads them the way you
would load real ones. Only the line with `lowtide.optimize` is new.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import lowtide
from lowtide.models import build


class ColoredSquares(Dataset):
    """Noise of 32 x 32 pixels with a bright square. Its place is the class."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 32, 32, generator=generator)
        label = index % 10
        row, column = 6 * (label // 5) + 4, 6 * (label % 5) + 1
        image[:, row : row + 6, column : column + 6] += 2.0
        return image, label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="75%")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = build("resnet18", image=32, classes=10).model
    # For images this small, do not halve the resolution twice at the start.
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    images = ColoredSquares(options.batch * options.steps)
    # A plan is for one shape, so drop the last batch if it is smaller.
    loader = DataLoader(images, options.batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    lowtide.optimize(model, budget=options.budget, optimizer=optimizer)

    for step, (inputs, labels) in enumerate(loader, 1):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}")
    print(lowtide.planned(model).plans[0])


if __name__ == "__main__":
    main()
