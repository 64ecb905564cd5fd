"""Non-identical data: every rank draws from texts of its own, all of them once per epoch, and nothing else changes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrad.topics import by_topic, part
from igrad.train import Run
from tests import tiny
from tests.ranks import on_ranks

HALF = tiny.VOCABULARY // 2


def two_vocabularies(num_windows, rng):
    """Windows in random order; beside words that all have, half of them has words below HALF, the others above."""
    own = rng.integers(4, HALF, (num_windows, tiny.LENGTH)) + HALF * (np.arange(num_windows)[:, None] % 2)
    common = rng.integers(0, 4, (num_windows, tiny.LENGTH))
    return rng.permutation(np.where(rng.random(own.shape) < 0.75, own, common).astype(np.int32))


def is_upper(windows):
    """Of the second vocabulary: bool [num_windows]."""
    return (windows >= HALF).any(axis=1)


# ------------------------------------------------------------------------------------ the order, the parts


@given(st.integers(10, 60), st.integers(0, 2**32))
def test_two_vocabularies_are_the_two_halves(pairs, seed):
    windows = two_vocabularies(2 * pairs, np.random.default_rng(seed))
    windows.flags.writeable = False  # as those on disk
    order = by_topic(windows)
    assert order.dtype == np.int64 and sorted(order) == list(range(2 * pairs))
    first, second = np.split(is_upper(windows)[order], 2)
    assert first.all() != second.all() and first.any() != second.any()


@given(st.integers(10, 60), st.integers(0, 2**32))
def test_the_order_follows_from_the_windows_not_from_where_they_stand(pairs, seed):
    """Which end comes first too: the sign of a component is arbitrary unless it is fixed."""
    rng = np.random.default_rng(seed)
    windows = two_vocabularies(2 * pairs, rng)
    elsewhere = rng.permutation(windows)
    np.testing.assert_array_equal(windows[by_topic(windows)], elsewhere[by_topic(elsewhere)])


def test_the_order_leaves_the_random_state_of_the_run_alone():
    before = np.random.get_state()[1].copy()
    by_topic(two_vocabularies(20, np.random.default_rng(0)))
    np.testing.assert_array_equal(before, np.random.get_state()[1])


@given(st.integers(1, 300), st.integers(1, 9), st.randoms())
def test_parts_are_neighbours_in_the_order_and_hold_every_window_once(num_windows, num_ranks, random):
    order = np.array(random.sample(range(num_windows), num_windows))
    parts = [part(order, rank, num_ranks) for rank in range(num_ranks)]
    sizes = [len(each) for each in parts]
    assert max(sizes) - min(sizes) <= 1
    ends = np.cumsum(sizes)
    for each, end in zip(parts, ends, strict=True):
        assert each.tolist() == sorted(order[end - len(each) : end])
    assert ends[-1] == num_windows


# ------------------------------------------------------------------------------------------------- runs

NUM_WINDOWS = 24


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The tiny model with windows of two vocabularies; both are held out."""
    folder = tmp_path_factory.mktemp("topics")
    rng = np.random.default_rng(0)
    for side, count in (("train", NUM_WINDOWS), ("eval", 8)):
        windows = two_vocabularies(count, rng)
        np.save(folder / f"{side}.input_ids.npy", windows)
        np.save(folder / f"{side}.labels.npy", windows)
    return replace(tiny.inputs(tmp_path_factory.mktemp("tiny")), windows=str(folder))


def read(rank, cfg, directory, inputs):
    """What a rank's model reads in two epochs, int64 [2, num_read, LENGTH], and its evaluation before."""
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    evaluation = run.evaluate()
    seen = []
    run.model.register_forward_pre_hook(lambda model, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True)
    per_epoch = NUM_WINDOWS // (run.num_ranks * cfg.batch_size * cfg.micro_batches)
    for step in range(2 * per_epoch):
        run.backward(step)
    return np.stack(np.split(torch.cat(seen).numpy(), 2)), evaluation


def as_set(windows):
    return {tuple(window) for window in windows.reshape(-1, tiny.LENGTH).tolist()}


@pytest.mark.parametrize("more", (("batch_size=3",), ("batch_size=2", "micro_batches=2")), ids=str)
def test_every_rank_reads_a_topic_of_its_own_whole_in_every_epoch(more, inputs, tmp_path):
    shuffled, by_rank = (
        on_ranks(2, read, tiny.config(f"split={split}", *more), tmp_path, inputs) for split in ("shuffled", "by_rank")
    )
    uppers = []
    for epochs, _ in by_rank:
        assert all(len(as_set(epoch)) == NUM_WINDOWS / 2 for epoch in epochs), "no window twice in an epoch"
        assert as_set(epochs[0]) == as_set(epochs[1])
        assert (epochs[0] != epochs[1]).any(), "in another order"
        uppers.append(is_upper(epochs[0]).mean())
    assert sorted(uppers) == [0, 1]
    for epochs, _ in shuffled:
        assert 0 < is_upper(epochs[0]).mean() < 1
    everything = as_set(np.load(f"{inputs.windows}/train.input_ids.npy"))
    for ranks in (shuffled, by_rank):
        assert as_set(np.concatenate([epochs[0] for epochs, _ in ranks])) == everything
    assert [evaluation for _, evaluation in by_rank] == [evaluation for _, evaluation in shuffled], "of all topics"


def test_a_single_rank_reads_the_same_under_every_split(inputs, tmp_path):
    shuffled, by_rank = (
        on_ranks(1, read, tiny.config(f"split={split}"), tmp_path, inputs)[0][0] for split in ("shuffled", "by_rank")
    )
    np.testing.assert_array_equal(shuffled, by_rank)
