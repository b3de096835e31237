"""The published table: its figures agree, and its networks are the published ones."""

import pytest
import torch

from benchmarks.published import cells
from benchmarks.published.table import PUBLISHED
from lowtide.shell.target import build

# The count that the paper states, and ours of the two others built the same way.
PARAMETERS = {
    "nasnet_cifar": 3_830_950,
    "amoebanet_cifar": 3_145_078,
    "darts_cifar": 3_349_342,
}


def test_all_published_rows_can_be_built_as_published():
    assert len(PUBLISHED) == 18
    for row in PUBLISHED.values():
        # The printed percentages follow from the printed figures, up to their rounding.
        cut = 100 * (1 - row.optimized_megabytes / row.regular_megabytes)
        overhead = 100 * (row.optimized_seconds / row.regular_seconds - 1)
        assert cut == pytest.approx(row.cut_percent, abs=1)
        assert overhead == pytest.approx(row.overhead_percent, abs=1)
        with torch.device("meta"):
            batch = build(row.target()).batch
        assert tuple(batch.shape) == (row.batch, 3, row.image, row.image)


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_of_cells_have_the_known_size(name):
    with torch.device("meta"):
        model, _, _ = getattr(cells, name)()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_of_cells_train(name):
    # Fewer than four cells, and no cell reads across a halving.
    model, images, loss = getattr(cells, name)(batch=2, layers=4, width=4)
    loss(model(images)).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
