"""Two ranks train through a trainer, with and without a plan. Run by torchrun."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import lowtide
from lowtide.engine.capture.tensors import bytes_in
from lowtide.engine.costs.machine import start_counting, stop_counting
from lowtide.engine.graphs.outside import residents_of
from lowtide.models._libraries import beside_torchvision

STEPS = 5
ASKED: dict[str, Any] = {"budget": "64 MiB", "planner": "recompute_all"}
# Rows are the same in all steps, so a rank's are, however a trainer deals them out.
TOKENS = torch.arange(64).remainder(50)


class Peaks:
    """The peaks of steps, each from its forward to the end of its backward."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def begin(self, model: nn.Module, optimizer: Any, batch: Any) -> None:
        self.there = bytes_in(residents_of([model], optimizer, batch))
        start_counting()

    def end(self) -> None:
        self.found.append(max(accumulate(stop_counting()[0], initial=self.there)))


def values_of(model: nn.Module, optimizer: Any) -> list[torch.Tensor]:
    state = [v for row in optimizer.state.values() for v in row.values()]
    values = [v for v in (*model.parameters(), *state) if isinstance(v, torch.Tensor)]
    return [v.to_local() if isinstance(v, DTensor) else v for v in values]


def allow_shards_on_a_cpu() -> None:
    """accelerate leaves its plugin for `fully_shard` aside where there is no GPU."""
    state = beside_torchvision("accelerate.state")
    begin = state.AcceleratorState.__init__

    def __init__(self: Any, *args: Any, fsdp_plugin: Any = None, **rest: Any) -> None:
        begin(self, *args, fsdp_plugin=fsdp_plugin, **rest)
        if fsdp_plugin is not None:
            self.distributed_type = state.DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    state.AcceleratorState.__init__ = __init__


def by_transformers(case: str, planned: bool, peaks: Peaks) -> tuple[nn.Module, Any]:
    transformers = beside_torchvision("transformers")
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 64}
    plain = {"use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=50, **sizes, **plain)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    options: dict[str, Any] = {}
    if "fsdp2" in case:
        wrap = {"transformer_layer_cls_to_wrap": ["GPT2Block"], "version": 2}
        options = {"fsdp": True, "fsdp_config": wrap}
        allow_shards_on_a_cpu()

    class Trainer(transformers.Trainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            peaks.begin(model, self.optimizer, inputs)
            try:
                return super().training_step(model, inputs, *rest)
            finally:
                peaks.end()

    callbacks = []
    if planned:
        from lowtide.integrations.transformers import LowtideCallback

        callbacks = [LowtideCallback(**ASKED)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            use_cpu=True,
            ddp_backend="gloo",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            max_grad_norm=0.0,
            **options,
        )
        rows = [{"input_ids": TOKENS, "labels": TOKENS} for _ in range(8 * STEPS)]
        trainer = Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
        trainer.train()
    return trainer.model_wrapped, trainer.optimizer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def by_lightning(case: str, planned: bool, peaks: Peaks) -> tuple[nn.Module, Any]:
    lightning = beside_torchvision("lightning.pytorch")
    strategies = beside_torchvision("lightning.pytorch.strategies")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(*(Block() for _ in range(3)))

        def configure_model(self) -> None:
            if "fsdp2" in case:
                mesh = self.device_mesh["data_parallel"]
                for block in self.net:
                    fully_shard(block, mesh=mesh)
                fully_shard(self.net, mesh=mesh)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    class Watch(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, _: int):
            peaks.begin(module, trainer.optimizers[0], batch)

        def on_before_optimizer_step(self, *_: Any) -> None:
            peaks.end()

    callbacks: list[Any] = [Watch()]
    if planned:
        from lowtide.integrations.lightning import LowtideCallback

        callbacks.append(LowtideCallback(**ASKED))
    strategy = strategies.DDPStrategy(process_group_backend="gloo")
    if "fsdp2" in case:
        strategy = strategies.ModelParallelStrategy(
            data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo"
        )
    torch.manual_seed(1)
    rows = torch.randn(8 * STEPS, 64, 32)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=4))  # type: ignore[arg-type]
    return module, trainer.optimizers[0]


def call_of(model: nn.Module) -> Any:
    found = (lowtide.planned(m) for m in model.modules())
    return next((call for call in found if call is not None), None)


def main() -> None:
    for case in sys.argv[1:]:
        train = by_transformers if "transformers" in case else by_lightning
        seen: dict[str, Any] = {"case": case, "peaks": []}
        values = []
        for planned in (False, True):
            torch._dynamo.reset()
            peaks = Peaks()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                model, optimizer = train(case, planned, peaks)
            values.append(values_of(model, optimizer))
            seen["peaks"].append(min(peaks.found[2:]))
            if planned:
                call = call_of(model)
                seen["warnings"] = [str(w.message) for w in told if "lowtide" in str(w)]
                seen["promised"] = call.planning.promised_bytes
                seen["backwards"] = call.watch.backwards
                seen["left"] = call.watch.left
        pairs = list(zip(*values, strict=True))
        seen["equal"] = all(torch.equal(p, q) for p, q in pairs)
        seen["values"] = len(pairs)
        seen["sharded"] = any(isinstance(p, DTensor) for p in model.parameters())
        seen["rank"] = dist.get_rank()
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
