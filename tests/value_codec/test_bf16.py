"""BF16: the nearest of two neighbours, the even one at a tie."""

import torch

from igrad.value_codec.bf16 import BF16

STEP = 2.0**-7  # between neighbours from 1 to 2


def coded(values):
    return BF16().decode(BF16().encode(values, [len(values)]), [len(values)], values.dtype)


def test_to_the_nearest_and_ties_to_even():
    for dtype in (torch.float32, torch.float64):
        steps = torch.tensor([0.0, 0.49, 0.5, 0.51, 1.49, 1.5, 2.5, -0.25, 127.5], dtype=dtype)
        nearest = torch.tensor([0.0, 0, 0, 1, 1, 2, 2, 0, 128], dtype=dtype)
        assert torch.equal(coded(1 + STEP * steps), 1 + STEP * nearest)


def test_at_most_half_a_step_is_lost():
    values = torch.randn(10_000) * 10.0 ** torch.randint(-30, 30, (10_000,))
    assert ((coded(values) - values).abs() <= STEP / 2 * values.abs()).all()
    assert (coded(values) != values).any()


def test_what_was_sent_is_sent_without_loss():
    sent = coded(torch.randn(1000))
    assert torch.equal(coded(sent), sent)
