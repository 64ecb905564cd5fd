"""No residual: what is not sent now is lost."""

from dataclasses import replace

import torch

from igrad.interfaces import View
from igrad.residual.none import NoResidual
from igrad.sparsifier.topk import largest

VIEW = View("v", "0.q", "v", (4,))


def select(candidate, share, *_):
    return largest(candidate, round(2 * share))


def never(*_):
    raise AssertionError("nothing to select in")


def test_a_step_that_is_not_due_leaves_no_trace():
    residual = NoResidual()
    assert residual.offer(VIEW, torch.tensor([100.0, 0, 0, 0]), never, None, 1.0, False) is None
    payload = residual.offer(VIEW, torch.tensor([1.0, -4, 2, 3]), select, slice(0, 4), 1.0, True)
    assert dict(zip(payload.indices.tolist(), payload.values.tolist(), strict=True)) == {1: -4.0, 3: 3.0}


def test_nothing_is_remembered_of_what_did_not_go():
    residual = NoResidual()
    payload = residual.offer(VIEW, torch.tensor([1.0, -4, 2, 3]), select, slice(0, 4), 1.0, False)
    residual.memory.subtract(replace(payload, values=payload.values / 2))
    assert residual.memory.pending(VIEW) is None
    assert residual.memory.state_dict() == {}


def test_a_payload_does_not_change_with_the_gradient():
    gradient = torch.ones(4)
    payload = NoResidual().offer(VIEW, gradient, lambda *_: None, slice(0, 4), 1.0, False)
    gradient.zero_()
    assert payload.indices is None and payload.values.tolist() == [1.0] * 4
