"""Published memory figures of 18 models, and the steps they were measured on.

Source: Feng and Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation
Graphs", CVPR 2021 (arXiv 1808.00079); the table in the README of their repository,
`lordfjw/OptimalGradCheckpointing`. Their memory is what a training step allocates
beyond weights, gradients and the CUDA context; their loss is the sum of the outputs;
their GPUs are of the RTX 2080 Ti class.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowtide.shell.target import Target

_HERE = Path(__file__).parent
# The class of device of the publication.
DEVICE = f"{_HERE / 'devices.toml'}:rtx2080ti"


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the published table.

    `cut_percent` and `overhead_percent` are printed there as whole numbers and copied,
    not derived.
    """

    name: str
    batch: int
    image: int
    regular_megabytes: int
    optimized_megabytes: int
    cut_percent: int
    regular_seconds: float
    optimized_seconds: float
    overhead_percent: int

    @property
    def cut(self) -> float:
        """By how much the activation peak fell, as a fraction."""
        return self.cut_percent / 100

    @property
    def overhead(self) -> float:
        """The extra time, as a fraction."""
        return self.overhead_percent / 100

    def target(self, batch: int | None = None) -> Target:
        """The step that was measured, at another batch if one is given."""
        size, image = batch or self.batch, self.image
        if self.name.endswith("_cifar"):
            text = f"{_HERE / 'cells.py'}:{self.name}"
            return Target(text, size, [f"image={image}"])
        return Target(self.name, size, [f"image={image}", "loss=sum"])


_ROWS = (
    Published("alexnet", 1024, 224, 4955, 3287, 34, 0.388, 0.519, 34),
    Published("vgg11", 64, 224, 3577, 2781, 22, 0.266, 0.356, 34),
    Published("vgg13", 64, 224, 5136, 3565, 31, 0.418, 0.558, 33),
    Published("vgg16", 64, 224, 5136, 3565, 31, 0.503, 0.666, 32),
    Published("vgg19", 64, 224, 5189, 3565, 31, 0.581, 0.774, 33),
    Published("resnet18", 256, 224, 5635, 3677, 35, 0.422, 0.548, 30),
    Published("resnet34", 128, 224, 4079, 1838, 55, 0.364, 0.493, 35),
    Published("resnet50", 64, 224, 5323, 1973, 63, 0.394, 0.516, 31),
    Published("resnet101", 32, 224, 3934, 1024, 74, 0.356, 0.482, 35),
    Published("resnet152", 16, 224, 2767, 526, 81, 0.241, 0.331, 37),
    Published("densenet121", 32, 224, 4027, 898, 78, 0.218, 0.292, 34),
    Published("densenet161", 16, 224, 3751, 666, 82, 0.252, 0.341, 36),
    Published("densenet169", 32, 224, 4862, 897, 82, 0.270, 0.357, 32),
    Published("densenet201", 16, 224, 3146, 474, 85, 0.200, 0.306, 53),
    Published("inception_v3", 32, 300, 3074, 881, 71, 0.291, 0.374, 29),
    Published("nasnet_cifar", 64, 32, 5832, 1129, 81, 0.408, 0.535, 31),
    Published("amoebanet_cifar", 64, 32, 4944, 1058, 79, 0.331, 0.450, 36),
    Published("darts_cifar", 64, 32, 5627, 1115, 80, 0.318, 0.494, 55),
)

PUBLISHED: Mapping[str, Published] = {row.name: row for row in _ROWS}
