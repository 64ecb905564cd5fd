"""A deferred parameter is not touched at all, nor is the deferred part of a fused one."""

import copy
from functools import partial

import pytest
import torch

from igrad.deferral.skip import Skip
from igrad.interfaces import View

ALONE = View("o", "0.o", "o", (2, 3))
# interleaved like a GPT-NeoX weight: the parts are strided
Q, K, V = (
    View(f"qkv[{kind}]", f"0.{kind}", "qkv", (2, 3), part=partial(lambda first, tensor: tensor[first::3], first))
    for first, kind in enumerate("qkv")
)
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.5),
}


class Toy:
    """Two parameters, one of them fused from three views, and an optimizer."""

    def __init__(self, option):
        torch.manual_seed(0)
        self.o, self.qkv = (torch.nn.Parameter(torch.randn(n, 3)) for n in (2, 6))
        self.optimizer = OPTIMIZERS[option]([self.o, self.qkv])
        self.parameters = {ALONE: self.o, Q: self.qkv, K: self.qkv, V: self.qkv}

    def step(self, seed, deferred=()):
        """As a synchronizer leaves it: a deferred view's gradient is zero."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in (self.o, self.qkv):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for view in deferred:
            view.part(self.parameters[view].grad).zero_()
        Skip().step(self.optimizer, self.parameters, frozenset(view.name for view in deferred))

    def state(self, parameter):
        return {"parameter": parameter.detach(), **self.optimizer.state[parameter]}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(t, second[name]) for name, t in first.items())


def parts(state, view):
    """The view's part of everything that has the parameter's shape."""
    return {name: view.part(t) for name, t in state.items() if t.shape == state["parameter"].shape}


@pytest.mark.parametrize("option", OPTIMIZERS)
def test_a_deferred_parameter_and_its_state_stay_as_they_are(option):
    toy, plain = Toy(option), Toy(option)
    toy.step(1), plain.step(1)
    before = copy.deepcopy(toy.state(toy.qkv))
    assert option == "momentum" or before["step"] == 1
    toy.step(2, deferred=(Q, K, V))
    plain.step(2)
    assert equal(toy.state(toy.qkv), before), "moments, step counter and weights"
    assert equal(toy.state(toy.o), plain.state(plain.o)), "the other parameter steps as ever"
    toy.step(3)
    assert not torch.equal(toy.qkv, before["parameter"]), "and so does this one when it is due"


@pytest.mark.parametrize("option", OPTIMIZERS)
@pytest.mark.parametrize("num_before", (0, 2))
def test_the_deferred_part_of_a_fused_parameter_stays_and_the_rest_steps(option, num_before):
    """num_before = 0: the optimizer has no state yet."""
    toy, plain = Toy(option), Toy(option)
    for seed in range(num_before):
        toy.step(seed), plain.step(seed)
    before = copy.deepcopy(toy.state(toy.qkv))
    toy.step(9, deferred=(Q,))
    plain.step(9)
    after, usual = toy.state(toy.qkv), plain.state(plain.qkv)
    for view in (K, V):
        assert equal(parts(after, view), parts(usual, view))
    for name, deferred in parts(after, Q).items():
        assert torch.equal(deferred, Q.part(before[name]) if name in before else torch.zeros(2, 3)), name
    assert equal(toy.state(toy.o), plain.state(plain.o))


def test_without_deferred_views_it_is_an_ordinary_step():
    toy, plain = Toy("adamw"), Toy("adamw")
    toy.step(1)
    generator = torch.Generator().manual_seed(1)
    for parameter in (plain.o, plain.qkv):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    plain.optimizer.step()
    assert equal(toy.state(toy.qkv), plain.state(plain.qkv)) and equal(toy.state(toy.o), plain.state(plain.o))
