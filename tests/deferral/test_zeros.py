"""A deferred gradient is zero: AdamW's moments decay and its weight decay acts."""

import pytest
import torch

from igrad.deferral.skip import Skip
from igrad.deferral.zeros import Zeros
from igrad.interfaces import View

VIEW = View("w", "0.q", "w", (3,))


def adamw(parameter, **options):
    return torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.5, **options)


def test_moments_decay_and_weight_decay_acts():
    """Against AdamW written out."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2, 3], dtype=torch.float64))
    optimizer = adamw(parameter)
    theta, g = parameter.detach().clone(), torch.tensor([0.5, 1.0, -1.0], dtype=torch.float64)
    m = v = torch.zeros(3, dtype=torch.float64)
    for step, gradient in enumerate((g, 0 * g, 0 * g, -g), start=1):
        parameter.grad = gradient.clone()
        Zeros().step(optimizer, {VIEW: parameter}, frozenset({"w"}) if not gradient.any() else frozenset())
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
        theta = theta * (1 - 0.1 * 0.5)
        theta = theta - 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
        assert torch.allclose(parameter.detach(), theta, rtol=1e-12)


def movement(deferral, gradients, period):
    """How far Adam (0.9, 0.999) moves on gradients [steps, numel] released as sums every `period` steps: rms."""
    parameter = torch.nn.Parameter(torch.zeros(gradients.shape[1]))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    held = torch.zeros(gradients.shape[1])
    for step, gradient in enumerate(gradients):
        held += gradient
        due = step % period == period - 1
        parameter.grad = held.clone() if due else torch.zeros_like(held)
        deferral.step(optimizer, {VIEW: parameter}, frozenset() if due else frozenset({"w"}))
        if due:
            held.zero_()
    return parameter.detach().square().mean().sqrt().item()


@pytest.mark.parametrize(("deferral", "constant", "noise"), ((Zeros(), 0.5, 1.0), (Skip(), 0.25, 0.5)))
def test_movement_relative_to_every_step(deferral, constant, noise):
    """Period 4. The slower second moment makes the difference: m falls to 1/4, sqrt(v) to 1/2."""
    steady = torch.full((2000, 1), 0.3)
    assert movement(deferral, steady, 4) / movement(deferral, steady, 1) == pytest.approx(constant, rel=0.03)
    random = torch.randn(2000, 2000, generator=torch.Generator().manual_seed(0))
    assert movement(deferral, random, 4) / movement(deferral, random, 1) == pytest.approx(noise, rel=0.05)
