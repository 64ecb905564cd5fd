"""The paper's delay on cases that can be worked out by hand."""

from dataclasses import replace

import pytest
import torch

from igrad.interfaces import View
from igrad.residual.delayed import Delayed
from igrad.sparsifier.topk import largest

VIEW = View("v", "0.q", "v", (4,))
WHOLE = slice(0, 4)


def select(candidate, share, *_):
    return largest(candidate, round(share))  # k = 1


def entries(payload):
    return dict(zip(payload.indices.tolist(), payload.values.tolist(), strict=True))


def step(residual, gradient, due=None, share=1.0, release=True):
    payload = residual.offer(VIEW, torch.tensor(gradient), select, due, share, release)
    if payload is not None:
        residual.memory.subtract(payload)
    return payload


def test_only_what_the_sparsifier_kept_waits():
    residual = Delayed()
    assert step(residual, [4.0, -3, 2, 1]) is None
    assert step(residual, [1.0, -3, 2, 1]) is None
    assert step(residual, [5.0, -3, 2, 1]) is None
    assert residual.memory.pending(VIEW).tolist() == [9, -3, 0, 0]


def test_a_release_reselects_k_of_the_union_and_carries_the_rest():
    """Three supports of one entry gather {0: 4, 1: -7, 2: 5}; one entry goes, not three."""
    residual = Delayed()
    step(residual, [4.0, -3, 2, 1])
    step(residual, [1.0, -7, 2, 1])
    payload = step(residual, [1.0, -3, 5, 1], due=WHOLE)
    assert entries(payload) == {1: -7}
    assert residual.memory.pending(VIEW).tolist() == [4, 0, 5, 0]
    payload = step(residual, [0.0, 0, 0, 6], due=WHOLE)
    assert entries(payload) == {3: 6}


def test_share_counts_at_the_release_alone():
    residual = Delayed()
    assert step(residual, [4.0, -3, 2, 1], share=2.0) is None
    assert residual.memory.pending(VIEW).count_nonzero() == 1
    payload = step(residual, [1.0, -3, 2, 1], due=WHOLE, share=2.0)
    assert entries(payload) == {0: 4, 1: -3}
    assert not residual.memory.pending(VIEW).any()


def test_an_important_view_sends_what_its_sparsifier_kept_and_holds_nothing():
    residual = Delayed()
    assert entries(step(residual, [4.0, -3, 2, 1], due=WHOLE, release=False)) == {0: 4}
    assert entries(step(residual, [1.0, -3, 2, 1], due=WHOLE, release=False)) == {1: -3}
    assert not residual.memory.pending(VIEW).any()


def test_what_an_important_view_could_not_send_goes_with_its_next_selection_there():
    """A lossy exchange leaves half of entry 0; it does not compete, so it waits until 0 is kept again."""
    residual = Delayed()
    payload = residual.offer(VIEW, torch.tensor([8.0, -3, 2, 1]), select, WHOLE, 1.0, False)
    residual.memory.subtract(replace(payload, values=payload.values / 2))
    assert residual.memory.pending(VIEW).tolist() == [4, 0, 0, 0]
    assert entries(step(residual, [0.0, -3, 2, 1], due=WHOLE, release=False)) == {1: -3}
    assert entries(step(residual, [5.0, -3, 2, 1], due=WHOLE, release=False)) == {0: 9}
    assert not residual.memory.pending(VIEW).any()


@pytest.mark.parametrize("release", (False, True))
def test_without_a_sparsifier_a_delay_is_a_sum(release):
    residual = Delayed()
    gradients = torch.tensor([[4.0, -3, 2, 1], [1.0, 1, 1, 1]])
    assert residual.offer(VIEW, gradients[0], lambda *_: None, None, 1.0, True) is None
    payload = residual.offer(VIEW, gradients[1], lambda *_: None, WHOLE, 1.0, release)
    assert payload.indices is None and payload.values.tolist() == [5, -2, 3, 2]
    residual.memory.subtract(payload)
    assert payload.values.tolist() == [5, -2, 3, 2], "a payload is no alias of memory"


def test_a_range_is_released_from_its_own_entries():
    residual = Delayed()
    step(residual, [4.0, -3, 2, 1])
    step(residual, [0.0, -3, 2, 9])
    payload = residual.offer(VIEW, torch.tensor([0.0, 0, 3, 0]), select, slice(2, 4), 1.0, True)
    assert (payload.start, payload.numel, entries(payload)) == (2, 2, {1: 9})


def test_a_strided_gradient_is_remembered_in_the_views_order():
    view = View("w", "0.q", "w", (2, 3))
    residual = Delayed()
    gradient = torch.tensor([[1.0, 4], [2, 5], [3, 6]]).t()
    residual.offer(view, gradient, lambda candidate, *_: largest(candidate, 2), None, 1.0, True)
    assert residual.memory.pending(view).tolist() == [0, 0, 0, 0, 5, 6]
