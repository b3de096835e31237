"""axolotl's own plugin manager and configuration, with a plugin of ours among them.

axolotl pins the versions of what it stands on, so it is no part of an extra of ours:
`pip install --no-deps axolotl addict`, beside the extra "integrations", is enough here.
"""

from __future__ import annotations

import pytest
from axolotl.integrations.base import PluginManager
from axolotl.utils.config import prepare_plugins, validate_config
from axolotl.utils.dict import DictDefault

import lowtide
from tests.integrations.comparing import LOWTIDE_WARNINGS_ONLY, assert_same_with_less
from tests.integrations.test_transformers import llama, train

pytestmark = LOWTIDE_WARNINGS_ONLY

PLUGIN = "lowtide.integrations.axolotl.LowtidePlugin"


@pytest.fixture
def manager():
    """The one manager of the process, which forgets nothing by itself."""
    made = PluginManager.get_instance()
    yield made
    made.plugins.clear()


def configured(**ours) -> DictDefault:
    """A file's settings after axolotl has read its plugins and checked the fields."""
    cfg = DictDefault(
        base_model="none",
        datasets=[{"path": "none", "type": "alpaca"}],
        micro_batch_size=8,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        plugins=[PLUGIN],
        **ours,
    )
    prepare_plugins(cfg)
    return validate_config(cfg)


def test_the_budget_is_a_field_of_the_configuration(manager):
    assert configured(lowtide_budget="6GiB").lowtide_budget == "6GiB"
    assert list(manager.plugins) == [PLUGIN]
    with pytest.raises(ValueError, match="lowtide_budget"):
        configured(lowtide_budget=["6GiB"])


def test_the_plugin_plans_what_the_trainer_trains(manager, tmp_path):
    def run(budget):
        manager.plugins.clear()
        cfg = configured(lowtide_budget=budget) if budget else DictDefault()
        callbacks = manager.add_callbacks_post_trainer(cfg, trainer=None)
        return train(llama(), tmp_path, *callbacks)

    planned = assert_same_with_less(run)
    assert lowtide.planned(planned.model).plans
