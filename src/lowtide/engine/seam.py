"""Which versions of torch lowtide was tried with, and what it needs of one.

lowtide reads torch's graphs through interfaces that may change between versions. What
is needed is asked for here, once, before the first capture: a version that lacks it is
refused by name. A version that has it but was never tried is used, with one warning,
and the first step of every model is compared with the same step without lowtide.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo import guards
from torch._dynamo.variables import TensorVariable
from torch._functorch._aot_autograd import graph_compile

from lowtide.engine.notices import warn
from lowtide.errors import TESTED_TORCH, UnsupportedTorchError

# Modules and what is used of them, where that is not documented by torch.
_NEEDED = {
    "torch._dynamo.backends.common": "aot_autograd",
    "torch._functorch._aot_autograd.descriptors": (
        "GradAOTOutput InputMutationAOTOutput PlainAOTInput"
    ),
    "torch._functorch._aot_autograd.graph_capture": (
        "_create_graph_and_save_traced_inputs"
    ),
    "torch._functorch._aot_autograd.graph_compile": (
        "_categorize_saved_tensors_for_backward"
    ),
    "torch._functorch._aot_autograd.schemas": "MemoryFormatMeta",
    "torch._functorch._aot_autograd.subclass_utils": "maybe_suggest_memory_format",
    "torch._functorch.config": "backward_pass_autocast",
    "torch._dispatch.python": "all_py_loaded_overloads",
    "torch.fx.experimental.proxy_tensor": "disable_autocast_cache",
    "torch.fx.graph": "_BoxedCodeGen",
    "torch._C._profiler": "_ExperimentalConfig",
    "torch._C": "_DisableAutocast _is_any_autocast_enabled",
    "torch": "_mirror_autograd_meta_to",
}


# What dynamo asks to compare a tensor.
COMPARE = next(
    name
    for name in ("tp_richcompare_impl", "richcompare_impl")  # torch 2.14, 2.13
    if hasattr(TensorVariable, name)
)


def opaque_base() -> type:
    """The base class of objects that a graph hands on without looking into them."""
    for module, name in (
        ("torch._custom_class_base", "CustomClassBase"),  # torch 2.14
        ("torch._opaque_base", "OpaqueBase"),  # torch 2.13
    ):
        if find_spec(module) is not None:
            return getattr(import_module(module), name)
    raise UnsupportedTorchError("it has no torch._opaque_base", torch.__version__)


_NOTES_WHAT_IS_SAVED = "_categorize_saved_tensors_for_backward"


class _NoInput(list[bool]):
    """Says of every saved tensor that it is no input."""

    def __getitem__(self, place: Any) -> Any:
        return False


def saving_as_it_comes() -> AbstractContextManager[Any]:
    """Let a forward save another number of tensors than the graph that was traced.

    From torch 2.15 on, AOTAutograd notes at which places inputs are saved, to detach
    all other views. Before that it detached all views.
    """
    note = getattr(graph_compile, _NOTES_WHAT_IS_SAVED)

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = note(*args, **kwargs)
        for given in (*args, *kwargs.values()):
            if hasattr(given, "saved_tensor_is_graph_input"):
                given.saved_tensor_is_graph_input = _NoInput()
        return found

    return patch.object(graph_compile, _NOTES_WHAT_IS_SAVED, noted)


def without_timing_guards() -> AbstractContextManager[Any]:
    """Let dynamo check its guards without timing them for a log line.

    The timing writes through 32 MiB of memory for each graph, which takes longer than
    many a graph does, and counts as memory of the process.

    NOTE(torch>=2.13): tried up to 2.15. One without it has nothing to leave out.
    """
    return patch.object(guards, "profile_guard_manager", lambda *_: 0.0, create=True)


def is_tested(version: str) -> bool:
    """Whether lowtide's tests have run on this version of torch."""
    return ".".join(version.split(".")[:2]) in TESTED_TORCH.split()


@cache
def check_torch(version: str) -> bool:
    """Whether this torch was tried; says so once if not.

    Raises:
        UnsupportedTorchError: it lacks something that lowtide needs.
    """
    for module, names in _NEEDED.items():
        try:
            found = import_module(module)
        except ImportError as error:
            raise UnsupportedTorchError(f"it has no {module}", version) from error
        for name in names.split():
            if not hasattr(found, name):
                raise UnsupportedTorchError(f"{module} has no {name}", version)
    if is_tested(version):
        return True
    warn(
        f"lowtide was tested with {TESTED_TORCH}, and this is torch {version}. The "
        "first step of each model is compared with the same step without lowtide."
    )
    return False


def should_verify() -> bool:
    """Whether the torch that runs was never tried, so that first steps are compared."""
    return not check_torch(torch.__version__)
