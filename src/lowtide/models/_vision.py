"""Image classifiers from torchvision."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import InvalidArgumentError
from lowtide.models._libraries import torchvision_models
from lowtide.models._own import CrossEntropy

# Options whose word differs in torchvision's constructors.
_THEIR_WORDS = {
    "width": "width_per_group",
    "drop_path": "stochastic_depth_prob",
    "auxiliary": "aux_logits",
}
# The auxiliary classifier of Inception needs features of 17 pixels.
_INCEPTION_AUXILIARY_IMAGE = 299


def torchvision_model(
    name: str, *, batch: int, image: int, classes: int, loss: str, **options: Any
) -> tuple[nn.Module, Tensor, Callable[[Any], Tensor]]:
    """The torchvision model of this name, on square colour images."""
    if options.get("auxiliary") and image < _INCEPTION_AUXILIARY_IMAGE:
        raise InvalidArgumentError(
            f"image={image} and auxiliary=True of model {name!r}",
            f"the auxiliary head needs {_INCEPTION_AUXILIARY_IMAGE} pixels or more",
            "Use a larger image, or auxiliary=False",
        )
    constructor = name + ("_bn" if options.pop("batch_norm", False) else "")
    arguments = {_THEIR_WORDS.get(word, word): v for word, v in options.items()}
    if name.startswith("densenet"):
        arguments["drop_rate"] = arguments.pop("dropout")
    if name == "inception_v3":
        # Spelled out, or torchvision warns that its default will change.
        arguments["init_weights"] = True
    make = getattr(torchvision_models(), constructor)
    model = make(weights=None, num_classes=classes, **arguments)
    images = torch.randn(batch, 3, image, image)
    if loss == "sum":
        return model, images, sum_outputs
    return model, images, CrossEntropy(torch.randint(classes, (batch,)))


def sum_outputs(output: Any) -> Tensor:
    """The sum of all outputs: no labels, as in published memory benchmarks."""
    if isinstance(output, tuple):
        return torch.stack([part.sum() for part in output]).sum()
    return output.sum()
