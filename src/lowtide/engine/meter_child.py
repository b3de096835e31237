"""The fresh process in which `meter` asks the operating system for a step's peak."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from lowtide.engine.api import apply, arguments_of
from lowtide.engine.meter import rss_peak
from lowtide.engine.training import training_step
from lowtide.models._libraries import torchvision_models
from lowtide.step.plan import Plan


def main(folder: str) -> None:
    """Load the job, run one step to warm up, measure the next."""
    # Unpickling imports what the model is made of; torchvision may need help with that.
    if find_spec("torchvision") is not None:
        torchvision_models()
    model, batch, loss = torch.load(Path(folder) / "job.pt", weights_only=False)
    path = Path(folder) / "plan.json"
    if path.exists():
        apply(model, Plan.load(path))
    step = training_step(model, loss, *arguments_of(batch))
    step()
    print(json.dumps({"rss_peak_bytes": rss_peak(step, [model])}))


if __name__ == "__main__":
    main(sys.argv[1])
