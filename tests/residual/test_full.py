"""Error feedback on cases that can be worked out by hand."""

from dataclasses import replace

import pytest
import torch

from igrad.interfaces import View
from igrad.residual.full import Full
from igrad.sparsifier.topk import largest

VIEW = View("v", "0.q", "v", (4,))
WHOLE = slice(0, 4)


def select(candidate, share, *_):
    return largest(candidate, round(share))  # k = 1


def never(*_):
    raise AssertionError("a deferred view costs no selection")


def entries(payload):
    return dict(zip(payload.indices.tolist(), payload.values.tolist(), strict=True))


def deferred(*gradients):
    residual = Full()
    for gradient in gradients:
        assert residual.offer(VIEW, torch.tensor(gradient), never, None, 1.0, True) is None
    return residual


def test_a_deferred_view_gathers_its_gradients_and_selects_nothing():
    residual = deferred([4.0, -3, 2, 1], [0.0, -2, 0, 1])
    assert residual.memory.pending(VIEW).tolist() == [4, -5, 2, 2]


@pytest.mark.parametrize("release", (False, True))
def test_selection_is_over_memory_and_gradient_together(release):
    """Important and due views alike: the largest of [4, -6, 2, 1] goes, the rest stays."""
    residual = deferred([4.0, -3, 2, 1])
    payload = residual.offer(VIEW, torch.tensor([0.0, -3, 0, 0]), select, WHOLE, 1.0, release)
    assert entries(payload) == {1: -6}
    residual.memory.subtract(payload)
    assert residual.memory.pending(VIEW).tolist() == [4, 0, 2, 1]
    assert entries(payload) == {1: -6}, "a payload is no alias of memory"
    again = residual.offer(VIEW, torch.zeros(4), select, WHOLE, 1.0, release)
    assert entries(again) == {0: 4}


def test_a_release_sends_its_share():
    residual = deferred([4.0, -3, 2, 1])
    payload = residual.offer(VIEW, torch.zeros(4), select, WHOLE, 3.0, True)
    assert entries(payload) == {0: 4, 1: -3, 2: 2}


def test_a_range_competes_among_itself_and_counts_from_its_start():
    residual = deferred([4.0, -3, 2, 1])
    payload = residual.offer(VIEW, torch.zeros(4), select, slice(2, 4), 1.0, True)
    assert (payload.start, payload.numel, entries(payload)) == (2, 2, {0: 2})
    residual.memory.subtract(payload)
    assert residual.memory.pending(VIEW).tolist() == [4, -3, 0, 1]


@pytest.mark.parametrize("k", (2, 4))
def test_what_a_lossy_exchange_did_not_send_is_kept(k):
    """k = 4 is a payload without indices."""
    residual = Full()
    payload = residual.offer(
        VIEW, torch.tensor([8.0, -6, 4, 2]), lambda c, *_: None if k == 4 else largest(c, k), WHOLE, 1.0, False
    )
    residual.memory.subtract(replace(payload, values=payload.values * 0.75))
    assert residual.memory.pending(VIEW).tolist() == ([2, -1.5, 1, 0.5] if k == 4 else [2, -1.5, 4, 2])


@pytest.mark.parametrize(
    ("given", "kept"), ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64))
)
def test_memory_is_at_least_fp32_and_takes_back_from_a_wider_bucket(given, kept):
    residual = Full()
    payload = residual.offer(VIEW, torch.tensor([4.0, -3, 2, 1], dtype=given), select, WHOLE, 1.0, False)
    assert payload.values.dtype == kept
    residual.memory.subtract(replace(payload, values=payload.values.double()))
    assert residual.memory.pending(VIEW).tolist() == [0, -3, 2, 1]
    assert residual.memory.pending(VIEW).dtype == kept


def test_small_bf16_gradients_are_not_swallowed():
    """256 + 1 is 256 in bf16."""
    residual = Full()
    for value in (256, 1, 1):
        residual.offer(VIEW, torch.full((4,), value, dtype=torch.bfloat16), never, None, 1.0, True)
    assert residual.memory.pending(VIEW).tolist() == [258] * 4


def test_a_strided_gradient_is_remembered_in_the_views_order():
    view = View("w", "0.q", "w", (2, 3))
    residual = Full()
    residual.offer(view, torch.tensor([[1.0, 4], [2, 5], [3, 6]]).t(), never, None, 1.0, True)
    assert residual.memory.pending(view).tolist() == [1, 2, 3, 4, 5, 6]


def test_whole_rows_are_offered_as_rows():
    """A row-wise sparsifier keeps its rows under a schedule of ranges; other ranges are flat."""
    view = View("w", "0.q", "w", (4, 3))
    shapes = []

    def note(candidate, *_):
        shapes.append(tuple(candidate.shape))

    for part in (slice(0, 12), slice(3, 9), slice(3, 8), slice(1, 4)):
        Full().offer(view, torch.ones(4, 3), note, part, 1.0, True)
    assert shapes == [(4, 3), (2, 3), (5,), (3,)]
