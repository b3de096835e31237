"""LoRA: most parameters are frozen, and the model is inside two wrappers."""

from __future__ import annotations

from peft import LoraConfig, get_peft_model

import lowtide
from lowtide.integrations import register
from lowtide.integrations.transformers import LowtideCallback
from tests.integrations.comparing import LOWTIDE_WARNINGS_ONLY, assert_same_with_less
from tests.integrations.test_transformers import llama, train

pytestmark = LOWTIDE_WARNINGS_ONLY


def lora():
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return get_peft_model(llama(), config)


def test_lora_is_planned_once(tmp_path):
    def run(budget):
        callbacks = [LowtideCallback(budget=budget)] if budget else []
        return train(lora(), tmp_path, *callbacks)

    planned = assert_same_with_less(run, budget="75%", share=0.95)
    assert len(lowtide.planned(planned.model).plans) == 1


def test_a_budget_in_place_of_checkpointing_plans_the_wrapper(tmp_path):
    register()
    trained = train(
        lora(),
        tmp_path,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"budget": "75%"},
        max_steps=2,
    )
    assert lowtide.planned(trained.model).plans
