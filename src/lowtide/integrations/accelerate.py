"""accelerate's list of compile backends, with ours in it.

It is an `enum`, checked when an `Accelerator` or the Hugging Face Trainer starts. The
budget comes from `LOWTIDE_BUDGET`, or from `TorchDynamoPlugin(options=...)`.
"""

from __future__ import annotations

from types import ModuleType

_NAME = "LOWTIDE"


def add_backend(dataclasses: ModuleType) -> None:
    """Add a member to `DynamoBackend` of `accelerate.utils.dataclasses`."""
    # NOTE(accelerate==1.15): the members of an enum are kept in these three tables.
    backends = dataclasses.DynamoBackend
    if _NAME in backends.__members__:
        return
    member = str.__new__(backends, _NAME)
    member._name_ = member._value_ = _NAME
    backends._member_map_[_NAME] = member
    backends._value2member_map_[_NAME] = member
    backends._member_names_.append(_NAME)
