"""Image classifiers from torchvision."""

from typing import Any

import torch
from torch import Tensor, nn

from lowtide.models._libraries import torchvision_models
from lowtide.models._loss import CrossEntropy, OutputSum, classification


def torchvision_model(
    name: str, *, batch: int, image: int, classes: int, loss: str, **options: Any
) -> tuple[nn.Module, Tensor, CrossEntropy | OutputSum]:
    """The torchvision model of this name, on square colour images."""
    models = torchvision_models()
    if options.pop("batch_norm", False):
        name += "_bn"
    if "width" in options:
        options["width_per_group"] = options.pop("width")
    if name.startswith("densenet"):
        options["drop_rate"] = options.pop("dropout")
    model = getattr(models, name)(weights=None, num_classes=classes, **options)
    images = torch.randn(batch, 3, image, image)
    return model, images, classification(loss, batch, classes)
