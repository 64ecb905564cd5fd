"""Windows are deterministic, split without leaks and labelled right; the order of batches is a pure function."""

import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import igrad.data
from igrad.data import IGNORED, Tokens, batch, load_windows, make_windows, pack, prepare, split, tokenise
from igrad.interfaces import Document
from igrad.model import load_tokenizer
from igrad.model.glass import Glass
from igrad.workload.tldr import Tldr

LENGTH = 16


@pytest.fixture(scope="module")
def model():
    return Glass().prepare()


@pytest.fixture
def clean_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("IGRAD_CACHE", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Given:
    """A workload of given documents."""

    given: tuple[Document, ...]

    def fingerprint(self):
        return str(hash(self.given))

    def documents(self):
        return iter(self.given)


def config(model, path, **changes):
    """What `prepare` reads of a config."""
    return OmegaConf.create(
        {
            "model": {"_target_": "igrad.model.hub.Hub", "name": str(model)},
            "workload": {"_target_": "igrad.workload.hub.Hub", "path": str(path)},
            "sequence_length": LENGTH, "batch_size": 2, "num_processes": 2, "micro_batches": 1, **changes,
        }
    )  # fmt: skip


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"This is text number {n}. " * (n % 7 + 1)}) + "\n" for n in range(99)))
    return path


# --------------------------------------------------------------------------------------------- windows


def test_windows_are_full_deterministic_and_cached(model, texts, clean_cache, monkeypatch):
    cfg = config(model, texts)
    first = prepare(cfg)
    windows = load_windows(first.windows)
    for input_ids, labels in windows.values():
        assert input_ids.dtype == labels.dtype == np.int32
        assert input_ids.shape == labels.shape == (len(input_ids), LENGTH)
        np.testing.assert_array_equal(input_ids, labels)  # no prompts: every label counts
    assert 0.03 < len(windows["eval"][0]) / sum(len(part) for part, _ in windows.values()) < 0.1
    before = {side: [part.copy() for part in parts] for side, parts in windows.items()}

    monkeypatch.setattr(igrad.data, "load_tokenizer", lambda path: pytest.fail("tokenised again"))
    assert prepare(cfg) == first
    monkeypatch.undo()
    monkeypatch.setenv("IGRAD_CACHE", str(texts.parent / "another"))
    again = load_windows(prepare(cfg).windows)
    for side, parts in before.items():
        for part, other in zip(parts, again[side], strict=True):
            np.testing.assert_array_equal(part, other)


def test_other_text_length_or_tokenizer_is_another_folder(model, texts, clean_cache, tmp_path):
    folders = {prepare(config(model, texts)).windows, prepare(config(model, texts, sequence_length=8)).windows}
    other = shutil.copytree(model, tmp_path / "model")
    folders.add(prepare(config(other, texts)).windows)
    assert len(folders) == 2  # the same tokenizer elsewhere cuts the same windows
    file = other / "tokenizer_config.json"
    file.write_text(file.read_text() + "\n")
    folders.add(prepare(config(other, texts)).windows)
    texts.write_text(texts.read_text() + '{"text": "one more"}\n')
    folders.add(prepare(config(model, texts)).windows)
    assert len(folders) == 4


def test_every_token_of_the_train_documents_is_packed_in_order(model):
    tokenizer = load_tokenizer(model)
    documents = tuple(Document(f"text {n} <eos>") for n in range(50))
    tokens = tokenise(Given(documents), tokenizer)
    eos = tokenizer.eos_token_id
    assert np.count_nonzero(tokens.ids == eos) == len(documents)  # the one in the text is not one
    train, _ = split(tokens, LENGTH)
    input_ids, _ = pack(tokens, train, LENGTH)
    stream = [token for n in train for token in tokens.ids[tokens.starts[n] : tokens.starts[n + 1]]]
    assert input_ids.ravel().tolist() == stream[: len(stream) // LENGTH * LENGTH]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=40),
    st.integers(2, 20),
)
def test_labels_are_masked_on_prompts_and_nowhere_else(lengths, sequence_length):
    # a token's id tells whether it is of a prompt: odd
    ids = np.concatenate([[1] * prompt + [2] * text for prompt, text in lengths]).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum([prompt + text for prompt, text in lengths])])
    prompts = np.array([prompt for prompt, _ in lengths])
    tokens = Tokens(ids, starts, prompts, [b""] * len(lengths), [None] * len(lengths), [None] * len(lengths))
    input_ids, labels = pack(tokens, list(range(len(lengths))), sequence_length)
    np.testing.assert_array_equal(labels, np.where(input_ids == 1, IGNORED, input_ids))
    full = ids[: len(ids) // sequence_length * sequence_length].reshape(-1, sequence_length)
    np.testing.assert_array_equal(input_ids, full[(full[:, 1:] == 2).any(axis=1)])  # with something to learn


def test_only_answers_are_labelled(model):
    tokenizer = load_tokenizer(model)
    documents = tuple(Document(f"answer {n}", prompt=f"question {n}?\n") for n in range(40))
    tokens = tokenise(Given(documents), tokenizer)
    _, labels = pack(tokens, list(range(40)), len(tokens.ids))
    kept = labels[labels != IGNORED]
    assert tokenizer.decode(kept) == "".join(f"answer {n}<eos>" for n in range(40))


# ----------------------------------------------------------------------------------------------- split


def sides(documents, sequence_length=2):
    """train and eval as sets of documents; a token per letter, as far as the split is concerned."""
    lengths = [len(document.text) + len(document.prompt) + 1 for document in documents]
    tokens = Tokens(
        np.zeros(sum(lengths), dtype=np.int32), np.concatenate([[0], np.cumsum(lengths)]), np.zeros(len(lengths)),
        [repr(document[:2]).encode() for document in documents],
        [document.group for document in documents], [document.held_out for document in documents],
    )  # fmt: skip
    train, held = split(tokens, sequence_length)
    return train, held


documents = st.builds(
    Document, text=st.text("ab", min_size=1, max_size=6), prompt=st.sampled_from(["", "p"]),
    group=st.one_of(st.none(), st.sampled_from("xyz")), held_out=st.none(),
)  # fmt: skip


def shares(given_documents, train, held):
    """Whether the sides have a document or a group in common."""
    marks = [{(d[:2], None) for d in side} | {d.group for d in side if d.group} for side in
             ([given_documents[n] for n in side] for side in (train, held))]  # fmt: skip
    return bool(marks[0] & marks[1])


@given(st.lists(documents, min_size=1, max_size=60))
def test_equal_documents_and_groups_stay_on_one_side(given_documents):
    train, held = sides(given_documents)
    assert sorted(train + held) == list(range(len(given_documents)))
    assert not shares(given_documents, train, held)


@given(st.lists(st.tuples(documents, st.booleans()), min_size=1, max_size=60))
def test_a_given_split_is_kept_and_its_like_leave_train(pairs):
    given_documents = [document._replace(held_out=held) for document, held in pairs]
    train, held = sides(given_documents)
    assert held == [n for n, (_, side) in enumerate(pairs) if side]
    assert not shares(given_documents, train, held)
    for n in set(range(len(pairs))) - set(train) - set(held):  # none leaves without need
        assert shares(given_documents, [n], held)


@given(st.lists(documents, min_size=1, max_size=60), st.randoms())
def test_the_split_does_not_depend_on_the_order(given_documents, random):
    shuffled = list(given_documents)
    random.shuffle(shuffled)
    held = [sorted(ds[n] for n in sides(ds)[1]) for ds in map(plain_groups, (given_documents, shuffled))]
    assert held[0] == held[1]


def plain_groups(given_documents):
    """None does not sort."""
    return [document._replace(group=document.group or "x", held_out=None) for document in given_documents]


def test_about_five_percent_and_at_least_one_window_are_held_out():
    many = [Document(f"{n:04}") for n in range(2000)]
    assert 0.05 <= len(sides(many)[1]) / len(many) < 0.06
    few = [Document(f"{n:04}") for n in range(20)]
    assert len(sides(few, sequence_length=25)[1]) == 5


def test_one_huge_document_does_not_become_the_eval_side():
    for name in "abcdef":
        uneven = [Document(name * 5000), *(Document(f"{name}{n}") for n in range(500))]
        assert 0 not in sides(uneven)[1]


def test_commands_stay_on_one_side(model):
    train, held = sides(list(Tldr().documents()), sequence_length=128)
    groups = [document.group for document in Tldr().documents()]
    assert not {groups[n] for n in train} & {groups[n] for n in held}
    assert 0.03 < len(held) / len(groups) < 0.08


# ----------------------------------------------------------------------------------------------- order

layouts = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))  # ranks, micro-batches, batch size


def step_windows(num_windows, seed, step, layout):
    """All windows of one step, in the order of micro-batch and rank."""
    num_ranks, micro_batches, size = layout
    return np.concatenate(
        [
            batch(num_windows, seed, step, rank, num_ranks, size, micro, micro_batches)
            for micro in range(micro_batches)
            for rank in range(num_ranks)
        ]
    )


@given(st.integers(60, 200), st.integers(0, 2**32), layouts)
def test_every_window_once_per_epoch_over_all_ranks(num_windows, seed, layout):
    per_step = int(np.prod(layout))
    steps = 2 * num_windows // per_step + 1
    seen = np.concatenate([step_windows(num_windows, seed, step, layout) for step in range(steps)])
    assert seen.dtype == np.int64
    for epoch in range(2):
        part = seen[epoch * num_windows : (epoch + 1) * num_windows]
        assert sorted(part) == list(range(num_windows))
    assert not np.array_equal(seen[:num_windows], seen[num_windows : 2 * num_windows])


@given(st.integers(60, 200), st.integers(-5, 5), st.integers(0, 100), layouts)
def test_a_step_does_not_depend_on_its_history_or_its_division(num_windows, seed, step, layout):
    igrad.data.permutation.cache_clear()  # as after a restart
    first = step_windows(num_windows, seed, step, layout)
    assert np.array_equal(first, step_windows(num_windows, seed, step, (1, 1, int(np.prod(layout)))))


def test_seeds_change_the_order():
    orders = [tuple(batch(1000, seed, 0, 0, 1, 64)) for seed in (-1, 42, 43, 44)]
    assert len(set(orders)) == 4


# ---------------------------------------------------------------------------------------------- errors


def test_a_window_longer_than_the_context_names_both(model, texts, clean_cache):
    with pytest.raises(ValueError, match=r"sequence_length must be at most the model's context of 128, got 129"):
        prepare(config(model, texts, sequence_length=129))


def test_no_documents(model, tmp_path, clean_cache):
    path = tmp_path / "empty.jsonl"
    path.write_text('{"text": ""}\n')
    with pytest.raises(ValueError, match=r"no documents; check workload\.path"):
        prepare(config(model, path))


def test_too_little_text_says_how_much_there_was(model, tmp_path, clean_cache):
    path = tmp_path / "small.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    with pytest.raises(ValueError, match=r"its 2 documents of \d+ tokens leave no \w+ window of 16 tokens"):
        prepare(config(model, path))
    path.write_text(json.dumps({"text": "only one, but long " * 100}))
    with pytest.raises(ValueError, match=r"its 1 documents of \d+ tokens leave no eval window"):
        prepare(config(model, path))


def test_too_few_windows_for_one_step_names_the_factors(model, texts, clean_cache):
    with pytest.raises(ValueError, match=r"one step takes 6000 \(batch_size 1000 x num_processes 2 x micro_batches 3"):
        prepare(config(model, texts, batch_size=1000, micro_batches=3))


def test_a_tokenizer_without_end_of_text(model):
    tokenizer = load_tokenizer(model)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="end-of-text"):
        tokenise(Given((Document("a"),)), tokenizer)


def test_a_failed_preparation_leaves_no_windows(model, tmp_path, clean_cache):
    workload = Given((Document("too short"),))
    with pytest.raises(ValueError, match="too small"):
        make_windows(workload, model, LENGTH)
    assert not [path for path in (tmp_path / "cache" / "windows").iterdir() if not path.name.endswith(".lock")]
