"""TRL's supervised fine-tuning, which is a Trainer with a loss of its own."""

from __future__ import annotations

import datasets
import tokenizers
import torch
import transformers
import trl

import lowtide
from lowtide.integrations.transformers import LowtideCallback
from tests.integrations.comparing import (
    LOWTIDE_WARNINGS_ONLY,
    Trained,
    assert_same_with_less,
)
from tests.integrations.test_transformers import Losses

pytestmark = LOWTIDE_WARNINGS_ONLY


def tokenizer():
    """One token for each number; nothing is downloaded."""
    words = {str(number): number for number in range(95)} | {"<end>": 95}
    model = tokenizers.models.WordLevel(words, unk_token="<end>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", pad_token="<end>", unk_token="<end>"
    )


def llama() -> torch.nn.Module:
    """Large enough beside the 64 MiB that TRL's loss takes, whatever the model."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=4,
            hidden_size=128,
            intermediate_size=384,
            num_attention_heads=4,
            vocab_size=96,
        )
    )


def test_sft(tmp_path):
    def run(budget):
        tokens = torch.randint(0, 95, (20, 512)).tolist()
        losses, model = Losses(), llama()
        trainer = trl.SFTTrainer(
            model=model,
            args=trl.SFTConfig(
                output_dir=str(tmp_path),
                per_device_train_batch_size=4,
                max_steps=4,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                seed=0,
            ),
            train_dataset=datasets.Dataset.from_dict({"input_ids": tokens}),
            processing_class=tokenizer(),
            callbacks=[losses],
        )
        if budget:
            trainer.add_callback(LowtideCallback(budget=budget))
        trainer.train()
        return Trained(model, losses.seen)

    planned = assert_same_with_less(run, budget="75%", share=0.95)
    assert lowtide.planned(planned.model).plans
