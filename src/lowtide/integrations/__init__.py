"""lowtide in other people's training loops.

Each module here belongs to one library, and imports it. `register` imports none of
them: it waits until the program does.
"""

from __future__ import annotations

from types import ModuleType

from lowtide.integrations._imports import when_imported


def register() -> None:
    """Make lowtide known to the libraries that a program uses, now or later.

    After it, accelerate and the Hugging Face Trainer know the compile backend
    "lowtide", and `gradient_checkpointing_kwargs={"budget": "6 GiB"}` plans a
    Hugging Face model instead of checkpointing its layers.
    """
    from lowtide.integrations import accelerate, checkpointing

    when_imported("accelerate.utils.dataclasses", accelerate.add_backend)
    when_imported("transformers.modeling_utils", checkpointing.take_budgets)
    when_imported("torchvision.extension", _mend_torchvision)


def _mend_torchvision(extension: ModuleType) -> None:
    """Let it be imported beside a torch that its compiled part was not built for."""
    if not extension._has_ops():
        from lowtide.models._libraries import declare_missing_operators

        declare_missing_operators()
