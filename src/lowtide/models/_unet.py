"""U-Net (Ronneberger, Fischer, Brox 2015), as it is commonly trained today.

Convolutions are padded, so that the output has the size of the input, and each is
followed by batch normalisation. The long skips from the way down to the way up keep
large early activations alive until late: a good test for any planner.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from lowtide.errors import InvalidArgumentError
from lowtide.models._loss import CrossEntropy


class DoubleConvolution(nn.Sequential):
    """Two 3x3 convolutions, each normalised and rectified."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Halves the resolution `depth` times and doubles it back, joining equals."""

    def __init__(self, *, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = DoubleConvolution(channels, width)
        self.shrink = nn.MaxPool2d(2)
        self.down = nn.ModuleList(
            DoubleConvolution(small, large) for small, large in pairwise(widths)
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2)
            for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(
            DoubleConvolution(2 * width, width) for width in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """One score for each class and pixel."""
        features = self.stem(images)
        skips = []
        for down in self.down:
            skips.append(features)
            features = down(self.shrink(features))
        for grow, up in zip(self.grow, self.up, strict=True):
            features = up(torch.cat((skips.pop(), grow(features)), dim=1))
        return self.head(features)


def unet(
    name: str,
    *,
    batch: int,
    image: int,
    channels: int,
    classes: int,
    width: int,
    depth: int,
) -> tuple[nn.Module, Tensor, CrossEntropy]:
    """A U-Net, images for it, and a random class for each pixel."""
    if image % 2**depth:
        raise InvalidArgumentError(
            f"image={image} of model {name!r}",
            f"it cannot be halved {depth} times",
            f"Use a multiple of {2**depth}, or a smaller depth",
        )
    model = UNet(channels=channels, classes=classes, width=width, depth=depth)
    images = torch.randn(batch, channels, image, image)
    return model, images, CrossEntropy(torch.randint(classes, (batch, image, image)))
