"""Momentum correction and masking: against momentum SGD, against error feedback, and by hand."""

from dataclasses import replace

import pytest
import torch

from igrad.interfaces import View
from igrad.residual.dgc import DGC
from igrad.residual.full import Full
from igrad.sparsifier.topk import largest

VIEW = View("v", "0.q", "v", (4,))
WHOLE = slice(0, 4)


def select(candidate, share, *_):
    return largest(candidate, round(share))  # k = 1


def never(*_):
    raise AssertionError("a deferred view costs no selection")


def velocity(residual, view=VIEW):
    return residual.memory.velocity.pending(view)


def gradients(number, view=VIEW, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(view.shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(number)]


@pytest.mark.parametrize("momentum", (0.0, 0.5, 0.9))
def test_what_waits_is_what_momentum_sgd_would_have_moved(momentum):
    residual, parameter = DGC(momentum), torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum)
    for gradient in gradients(9):
        assert residual.offer(VIEW, gradient, never, None, 1.0, True) is None
        parameter.grad = gradient.clone()
        optimizer.step()
    assert torch.allclose(residual.memory.pending(VIEW), -parameter.detach())


def test_without_momentum_it_is_error_feedback_bit_for_bit():
    view = View("w", "0.q", "w", (6, 3))
    ours, full = DGC(0.0), Full()
    for step, gradient in enumerate(gradients(12, view, torch.float32)):
        due = (slice(0, 18), None, slice(3, 9))[step % 3]
        payloads = [residual.offer(view, gradient, select, due, 2.0, True) for residual in (ours, full)]
        if due is not None:
            assert torch.equal(payloads[0].indices, payloads[1].indices)
            assert torch.equal(payloads[0].values, payloads[1].values)
            for residual, payload in zip((ours, full), payloads, strict=True):
                residual.memory.subtract(replace(payload, values=payload.values.bfloat16().float()))
        assert torch.equal(ours.memory.pending(view), full.memory.pending(view))


@pytest.mark.parametrize("lossy", (False, True))
def test_velocity_is_conserved(lossy):
    """Every u that was added to v was sent or is in v."""
    residual = DGC(0.9)
    added, sent = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    before = torch.zeros(4, dtype=torch.float64)
    for step, gradient in enumerate(gradients(20)):
        due = (WHOLE, None, slice(1, 3))[step % 3]
        added += 0.9 * before + gradient
        payload = residual.offer(VIEW, gradient, select, due, 1.0, True)
        if payload is not None:
            payload = replace(payload, values=payload.values * 0.75) if lossy else payload
            residual.memory.subtract(payload)
            sent[payload.start + payload.indices] += payload.values
        before = velocity(residual).clone()
    assert torch.allclose(added, sent + residual.memory.pending(VIEW))
    assert sent.any()


def test_masking_stops_what_was_sent_and_nothing_else():
    residual = DGC(0.5)
    payload = residual.offer(VIEW, torch.tensor([4.0, -3, 2, 1]), select, WHOLE, 1.0, False)
    assert velocity(residual).tolist() == [4, -3, 2, 1], "not before it really went"
    residual.memory.subtract(payload)
    assert velocity(residual).tolist() == [0, -3, 2, 1]
    assert residual.memory.pending(VIEW).tolist() == [0, -3, 2, 1]
    residual.offer(VIEW, torch.zeros(4), never, None, 1.0, True)
    assert velocity(residual).tolist() == [0, -1.5, 1, 0.5]
    assert residual.memory.pending(VIEW).tolist() == [0, -4.5, 3, 1.5]


def test_masking_goes_by_what_was_sent_not_by_what_was_offered():
    """A collective may send other entries, or part of a value: its rest stays in v without momentum."""
    residual = DGC(0.5)
    payload = residual.offer(VIEW, torch.tensor([8.0, -3, 2, 1]), select, WHOLE, 1.0, False)
    assert payload.indices.tolist() == [0]
    residual.memory.subtract(replace(payload, values=torch.tensor([-2.0]), indices=torch.tensor([1])))
    assert velocity(residual).tolist() == [8, 0, 2, 1]
    assert residual.memory.pending(VIEW).tolist() == [8, -1, 2, 1]


@pytest.mark.parametrize("part", (WHOLE, slice(1, 3)))
def test_a_range_that_is_sent_whole_is_masked_whole(part):
    residual = DGC(0.5)
    payload = residual.offer(VIEW, torch.tensor([8.0, -3, 2, 1]), lambda *_: None, part, 1.0, True)
    assert payload.indices is None
    residual.memory.subtract(payload)
    expected = torch.tensor([8.0, -3, 2, 1])
    expected[part] = 0
    assert torch.equal(velocity(residual), expected) and torch.equal(residual.memory.pending(VIEW), expected)


def test_a_step_can_be_taken_back():
    """Both of v and u; what was made in the step is zero again."""
    other = View("w", "0.q", "w", (2, 2))
    residual = DGC(0.5)
    for gradient in gradients(3):
        residual.offer(VIEW, gradient, never, None, 1.0, True)
    before = {view.name: residual.memory.copy(view) for view in (VIEW, other)}
    held, speed = residual.memory.pending(VIEW).clone(), velocity(residual).clone()
    for view in (VIEW, other):
        residual.offer(view, torch.full(view.shape, float("inf"), dtype=torch.float64), never, None, 1.0, True)
    residual.memory.restore(before)
    assert torch.equal(residual.memory.pending(VIEW), held) and torch.equal(velocity(residual), speed)
    assert not residual.memory.pending(other).any() and not velocity(residual, other).any()


def test_resume_is_as_if_there_had_been_no_stop():
    straight, first = DGC(0.9), DGC(0.9)
    for step, gradient in enumerate(gradients(8)):
        if step == 5:
            resumed = DGC(0.9)
            resumed.memory.load_state_dict(first.memory.state_dict())
            first = resumed
        payloads = [residual.offer(VIEW, gradient, select, WHOLE, 1.0, False) for residual in (straight, first)]
        assert torch.equal(payloads[0].indices, payloads[1].indices)
        assert torch.equal(payloads[0].values, payloads[1].values)
        for residual, payload in zip((straight, first), payloads, strict=True):
            residual.memory.subtract(payload)
        assert torch.equal(velocity(first), velocity(straight))


@pytest.mark.parametrize("momentum", (-0.1, 1.0, float("nan")))
def test_momentum_out_of_range(momentum):
    with pytest.raises(ValueError, match=rf"momentum must be in \[0, 1\), got {momentum}"):
        DGC(momentum)
