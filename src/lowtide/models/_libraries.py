"""Imports torchvision and transformers, also without torchvision's compiled part.

A torchvision built for CUDA cannot load its compiled operators beside a CPU-only torch.
It then fails at import, because it describes two operators (`nms`, `qnms`) that do not
exist. No model here uses them, so declaring their signatures is enough.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

from lowtide.errors import MissingPackageError

# NOTE(torchvision==0.28): signatures as in its C++ sources.
_MISSING_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Dropping a library undoes its declarations, so the declarations live here.
_declared: list[torch.library.Library] = []


@cache
def torchvision_models() -> ModuleType:
    _require("torchvision")
    _import_torchvision()
    return import_module("torchvision.models")


@cache
def transformers() -> ModuleType:
    _require("transformers")
    return beside_torchvision("transformers")


def beside_torchvision(name: str) -> ModuleType:
    """A module that imports torchvision if it is there, and would fail with it."""
    if find_spec("torchvision") is not None:
        _import_torchvision()
    return import_module(name)


def _require(name: str) -> None:
    if find_spec(name) is None:
        purpose = "the model comes from it; mlp, tiny_gpt and unet need no library"
        raise MissingPackageError(name, purpose, f"pip install {name}")


def _import_torchvision() -> None:
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        # The failed import leaves submodules behind that believe it went well.
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        declare_missing_operators()
        import_module("torchvision")


def declare_missing_operators() -> None:
    """Declare what torchvision's compiled part would have."""
    if _declared:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _MISSING_OPERATORS:
        library.define(name + _SIGNATURE)
    _declared.append(library)
