"""The Hugging Face Trainer, with GPT-2 and Llama, and what accelerate makes of it."""

from __future__ import annotations

import pytest
import torch
import transformers

import lowtide
from lowtide.integrations import register
from lowtide.integrations.transformers import LowtideCallback
from tests.integrations.comparing import (
    LOWTIDE_WARNINGS_ONLY,
    Trained,
    assert_same_with_less,
)

pytestmark = LOWTIDE_WARNINGS_ONLY

TOKENS = 64


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=4, n_embd=64, n_head=4, n_positions=TOKENS, vocab_size=96
        )
    )


def llama() -> torch.nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=4,
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=96,
        )
    )


def rows(count: int = 48) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(0, 96, (count, TOKENS))
    return [{"input_ids": row, "labels": row} for row in tokens]


class Losses(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.seen.append(logs["loss"])


def train(model, folder, *callbacks, **arguments) -> Trained:
    losses = Losses()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            **{
                "per_device_train_batch_size": 8,
                "max_steps": 4,
                "logging_steps": 1,
                "report_to": "none",
                "save_strategy": "no",
                "disable_tqdm": True,
                "use_cpu": True,
                "seed": 0,
                **arguments,
            },
        ),
        train_dataset=rows(),
        eval_dataset=rows(8),
        callbacks=[losses, *callbacks],
    )
    trainer.train()
    return Trained(model, losses.seen)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_callback_plans_what_the_trainer_trains(make, tmp_path):
    def run(budget):
        callbacks = [LowtideCallback(budget=budget)] if budget else []
        return train(make(), tmp_path, *callbacks)

    planned = assert_same_with_less(run)
    assert len(lowtide.planned(planned.model).plans) == 1


def test_accumulation_clipping_bf16_and_evaluation(tmp_path):
    def run(budget):
        callbacks = [LowtideCallback(budget=budget)] if budget else []
        return train(
            gpt2(),
            tmp_path,
            *callbacks,
            gradient_accumulation_steps=2,
            max_grad_norm=0.1,
            bf16=True,
            eval_strategy="steps",
            eval_steps=2,
        )

    assert_same_with_less(run, budget="75%", share=0.95)


def test_a_budget_in_place_of_checkpointing(tmp_path):
    register()

    def run(budget):
        arguments = {}
        if budget:
            arguments = {
                "gradient_checkpointing": True,
                "gradient_checkpointing_kwargs": {"budget": budget},
            }
        return train(llama(), tmp_path, **arguments)

    planned = assert_same_with_less(run)
    assert len(lowtide.planned(planned.model).plans) == 1


def test_checkpointing_without_a_budget_is_left_alone(tmp_path):
    register()
    trained = train(
        llama(),
        tmp_path,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        max_steps=1,
    )
    assert trained.model.is_gradient_checkpointing
    assert lowtide.planned(trained.model) is None


def test_the_trainer_knows_the_backend(tmp_path, monkeypatch):
    register()

    def run(budget):
        if budget is None:
            return train(llama(), tmp_path)
        monkeypatch.setenv("LOWTIDE_BUDGET", budget)
        return train(llama(), tmp_path, torch_compile_backend="lowtide")

    assert_same_with_less(run)
