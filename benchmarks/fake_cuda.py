"""Steps on a GPU that is not there: capture, estimate, plan, rewrite, and a run.

With a torch that was built for CUDA, fake tensors may say that they are on a GPU, also
where there is none. Twenty models are built of such tensors, and their training steps
are captured for the device `cuda`, estimated for a described GPU, planned for a budget
between floor and peak, rewritten, and run. Nothing is computed and nothing allocated.
The bytes of the storages that live at once in that run, each rounded up to 512 bytes as
CUDA's caching allocator does, are compared with the prediction; so are those of the
step without a plan.

    python benchmarks/fake_cuda.py                   # about a minute for each model
    python benchmarks/fake_cuda.py mlp tiny_gpt
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import json
import logging
import re
from pathlib import Path
from typing import Any

import torch

from lowtide import models, planners
from lowtide.engine.api import apply, profile, restore
from lowtide.engine.costs.ledger import ledger
from lowtide.engine.training import arguments_of, training_step
from lowtide.errors import InvalidArgumentError

RESULTS = Path(__file__).parent / "results" / "fake_cuda.json"
DEVICE = "h100"
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 1024, "width": 64},
    "tiny_gpt": {"batch": 8},
    "tiny_gpt dropout": {"batch": 8, "dropout": 0.1},
    "tiny_gpt 16 bits": {"batch": 8, "dtype": "bfloat16"},
    "alexnet": {"batch": 64},
    "vgg11": {"batch": 16},
    "vgg16": {"batch": 16},
    "resnet18": {"batch": 32},
    "resnet34": {"batch": 32},
    "resnet50": {"batch": 32},
    "densenet121": {"batch": 16},
    "inception_v3": {"batch": 16},
    "mobilenet_v3_large": {"batch": 32},
    "convnext_tiny": {"batch": 16},
    "unet": {},
    "vit": {"batch": 32},
    "gpt2": {"batch": 8, "layers": 4},
    "bert": {"batch": 8, "layers": 4},
    "t5": {"batch": 8, "layers": 3},
    "llama": {"layers": 2},
}
SECONDS = 2.0
_SLOTS = 128


def pretend() -> None:
    """Let autograd run on fake CUDA tensors where there is no GPU.

    NOTE(torch==2.15): before a backward it asks, for each CUDA device, whether it has
    a context there, and asking for a device that is not there fails. A copy of the
    table of functions that is asked gets one that answers no.

    Raises:
        InvalidArgumentError: this torch was not built for CUDA.
    """
    if torch.version.cuda is None:
        raise InvalidArgumentError(
            "fake CUDA tensors",
            f"torch {torch.__version__} was not built for CUDA",
            "Install a build of torch for CUDA; a GPU is not needed",
        )
    if torch.cuda.is_available():
        return
    folder = Path(torch.__file__).parent
    header = folder / "include" / "ATen" / "detail" / "AcceleratorHooksInterface.h"
    before, _, _ = header.read_text().partition("bool hasPrimaryContext(")
    _, _, members = before.partition("struct TORCH_API AcceleratorHooksInterface")
    # The destructor has two places; "virtual" of the function asked for is the last.
    place = len(re.findall(r"^\s*virtual\b", members, re.MULTILINE))
    library = ctypes.CDLL(str(folder / "lib" / "libtorch_cpu.so"))
    hooks = library._ZN2at6detail12getCUDAHooksEv
    hooks.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(hooks())
    assert table.value is not None
    # In front of the functions stand two words about the class.
    words = ctypes.c_void_p * (_SLOTS + 2)
    pretended = words(*words.from_address(table.value - 16))
    pretended[place + 2] = ctypes.cast(_NO, ctypes.c_void_p).value
    atexit.register(setattr, table, "value", table.value)  # the copy dies first
    _KEPT.append(pretended)
    table.value = ctypes.addressof(pretended) + 16
    torch.cuda.default_generators = (_Generator(),)  # type: ignore[assignment]


class _Generator:
    """Stands for the generator of a GPU that is not there. Fakes draw nothing."""

    def get_state(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        pass


_NO = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda *_: False)
_KEPT: list[Any] = []


def trial(name: str) -> dict[str, Any]:
    """One model, all the way."""
    options = {"device": "cuda", **MODELS[name]}
    example = models.build_fake(name.split()[0], **options)
    model, batch, loss = example.model, example.batch, example.loss
    step = profile(model, batch, loss=loss, how="estimate", device=DEVICE)
    limit = (step.floor_bytes + step.eager_peak_bytes) // 2
    plan = planners.load("auto").plan(step, limit, time_limit=SECONDS)
    run = training_step(model, loss, arguments_of(batch))
    parameter: Any = next(model.parameters())
    peaks = []
    with parameter.fake_mode:
        for given in (None, plan):
            if given is not None:
                apply(model, given)
            run()  # the first run captures
            model.zero_grad(set_to_none=True)
            peaks.append(ledger(run, modules=[model], batch=batch).peak_bytes)
            model.zero_grad(set_to_none=True)
    restore(model)
    return {
        "name": name,
        "device": str(step.device),
        "num_ops": len(step.ops),
        "num_recomputed": len(plan.ops) - len(step.baseline),
        "eager_bytes": step.eager_peak_bytes,
        "ledger_eager_bytes": peaks[0],
        "budget_bytes": limit,
        "planned_bytes": plan.peak_bytes,
        "ledger_planned_bytes": peaks[1],
        "overhead": plan.overhead,
    }


def main() -> None:
    """Try the named models, or all, and keep the rows of the others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    asked = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    pretend()
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {row["name"]: row for row in known}
    for name in asked.models or MODELS:
        rows[name] = trial(name)
        print(json.dumps(rows[name]), flush=True)
        ordered = [rows[each] for each in MODELS if each in rows]
        found = {"torch": torch.__version__, "device": DEVICE, "rows": ordered}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
