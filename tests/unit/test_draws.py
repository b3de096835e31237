"""Random ops drawn again, where the op itself takes no generator."""

import torch

from lowtide.engine.forms import draws

aten = torch.ops.aten


def test_a_dropout_without_a_generator_is_drawn_again_from_the_process():
    # As on a GPU, whose dropout is one kernel; the processor's will do to see it.
    x = torch.ones(1000)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    expected = aten.native_dropout(x, 0.5, True)
    after = torch.get_rng_state()
    torch.rand(7)
    elsewhere = torch.get_rng_state()
    given = ("cpu", aten.native_dropout.default, x, 0.5, True)
    found, behind = draws._draw_from_process(state, *given)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(behind, after)
    assert torch.equal(torch.get_rng_state(), elsewhere)


def test_a_draw_moves_the_process_on_and_a_repetition_does_not():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    expected = torch.bernoulli(torch.full((100,), 0.5))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    given = (aten.bernoulli.default, torch.full((100,), 0.5))
    assert torch.equal(draws.draw(state, *given), expected)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(draws.draw_again(state, *given), expected)
    assert torch.equal(torch.get_rng_state(), after)
