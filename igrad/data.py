"""From a model and a workload to token windows on disk, and the order in which the ranks read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig
from tqdm import tqdm

from igrad.cache import cache, made_once
from igrad.config import build
from igrad.interfaces import Document, Workload
from igrad.model import context_length, load_tokenizer

EVAL_SHARE = 0.05  # of all tokens; at least one window
IGNORED = -100  # label where the loss does not count, torch's ignore_index
CHUNK = 1000  # documents per call of the tokenizer
VERSION = 1  # of tokenising, splitting and packing; a new one makes new windows
TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model")

Windows = dict[str, tuple[np.ndarray, np.ndarray]]  # train, eval -> input_ids, labels: int32 [n, sequence_length]


@dataclass(frozen=True)
class Inputs:
    """What the ranks read, as paths."""

    model: str  # transformers folder
    windows: str  # folder for load_windows
    profile: str | None = None  # importance profile to read
    trace_to: str | None = None  # importance profile to write: this is a profiling run


class Tokens(NamedTuple):
    """All documents of a workload, one after the other, each closed by end-of-text."""

    ids: np.ndarray  # int32 [num_tokens]
    starts: np.ndarray  # int64 [num_documents + 1]
    prompts: np.ndarray  # int64 [num_documents]: leading tokens that are context only
    keys: list[bytes]  # digest of prompt and text: equal documents have equal keys
    groups: list[str | None]
    held_out: list[bool | None]


def prepare(cfg: DictConfig) -> Inputs:
    """Make, or find in the cache, the model folder and the windows of a config. ValueError for user mistakes."""
    model = build(cfg.model, "model").prepare()
    longest = context_length(model)
    if longest is not None and cfg.sequence_length > longest:
        raise ValueError(f"sequence_length must be at most the model's context of {longest}, got {cfg.sequence_length}")
    windows = make_windows(build(cfg.workload, "workload"), model, cfg.sequence_length)
    num_train = len(load_windows(windows)["train"][0])
    per_step = cfg.batch_size * cfg.num_processes * cfg.micro_batches
    if num_train < per_step:
        raise ValueError(
            f"the workload has {num_train} training windows of {cfg.sequence_length} tokens, but one step takes "
            f"{per_step} (batch_size {cfg.batch_size} x num_processes {cfg.num_processes} x micro_batches "
            f"{cfg.micro_batches}); lower one of these or sequence_length, or use more text"
        )
    return Inputs(model=str(model), windows=str(windows))


def make_windows(workload: Workload, model: Path, sequence_length: int) -> Path:
    """The folder of a workload's windows, tokenised once; load_windows reads it."""

    def make(folder: Path) -> None:
        tokens = tokenise(workload, load_tokenizer(model))
        windows = {
            side: pack(tokens, documents, sequence_length)
            for side, documents in zip(("train", "eval"), split(tokens, sequence_length), strict=True)
        }
        for side, (input_ids, _) in windows.items():
            if len(input_ids) == 0:
                raise ValueError(
                    f"the workload is too small: its {len(tokens.keys)} documents of {len(tokens.ids)} tokens leave no "
                    f"{side} window of {sequence_length} tokens; train and eval need at least one each and "
                    "share no document, so use more documents or a lower sequence_length"
                )
        folder.mkdir()
        for side, (input_ids, labels) in windows.items():
            np.save(folder / f"{side}.input_ids.npy", input_ids)
            np.save(folder / f"{side}.labels.npy", labels)

    key = [VERSION, sequence_length, workload.fingerprint(), tokenizer_digest(model)]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return made_once(cache() / "windows" / name, make)


def load_windows(path: str | Path) -> Windows:
    """Memory-mapped windows: side (train, eval) -> input_ids, labels. Labels are not shifted; -100 = no loss."""
    folder = Path(path)
    return {
        side: tuple(np.load(folder / f"{side}.{part}.npy", mmap_mode="r") for part in ("input_ids", "labels"))
        for side in ("train", "eval")
    }


def tokenizer_digest(model: Path) -> str:
    """Digest of the files that determine how a model folder's tokenizer cuts text."""
    files = sorted({file for pattern in TOKENIZER_FILES for file in model.glob(pattern)})
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def tokenise(workload: Workload, tokenizer: Any) -> Tokens:
    """All documents as token ids. Raises ValueError when there are none, or no end-of-text token."""
    if tokenizer.eos_token_id is None:
        raise ValueError("the model's tokenizer has no end-of-text token (eos_token), which separates the documents")
    ids, lengths, prompts, keys = [], [], [], []
    groups: list[str | None] = []
    held_out: list[bool | None] = []
    total = len(workload) if hasattr(workload, "__len__") else None
    bar = tqdm(workload.documents(), desc="tokenising", total=total, unit=" documents", mininterval=0.5)
    for documents in chunks(bar, CHUNK):
        # prompt and text are cut apart, so that a label never straddles the border
        before = encode(tokenizer, [document.prompt for document in documents])
        after = encode(tokenizer, [document.text for document in documents])
        for document, context, answer in zip(documents, before, after, strict=True):
            ids.append(np.array([*context, *answer, tokenizer.eos_token_id], dtype=np.int32))
            lengths.append(len(ids[-1]))
            prompts.append(len(context))
            keys.append(hashlib.blake2b(json.dumps(document[:2]).encode(), digest_size=16).digest())
            groups.append(document.group)
            held_out.append(document.held_out)
    if not ids:
        raise ValueError("the workload has no documents; check workload.path and workload.text")
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Tokens(np.concatenate(ids), starts, np.array(prompts, dtype=np.int64), keys, groups, held_out)


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids without special tokens, also where a text spells one out."""
    if not any(texts):
        return [[] for _ in texts]
    return tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]


def chunks(documents: Iterable[Document], length: int) -> Iterator[list[Document]]:
    """Consecutive lists of at most `length`."""
    iterator = iter(documents)
    while chunk := list(islice(iterator, length)):
        yield chunk


def split(tokens: Tokens, sequence_length: int) -> tuple[list[int], list[int]]:
    """Positions of the train and the eval documents; equal documents and groups stay on one side.

    Where the source says what is held out, that is the eval side, and its like leave the train side.
    Otherwise clusters go to eval in the order of a hash until 5 % of the tokens, and one window, are there; never one
    that would make eval more than half of the text.
    """
    if any(held is not None for held in tokens.held_out):
        eval_documents = [number for number, held in enumerate(tokens.held_out) if held]
        keys = {tokens.keys[number] for number in eval_documents}
        groups = {tokens.groups[number] for number in eval_documents} - {None}
        train = [
            number
            for number, held in enumerate(tokens.held_out)
            if not held and tokens.keys[number] not in keys and tokens.groups[number] not in groups
        ]
        return train, eval_documents
    clusters = sorted(cluster(tokens.keys, tokens.groups), key=lambda documents: min(tokens.keys[n] for n in documents))
    wanted = max(EVAL_SHARE * len(tokens.ids), sequence_length)
    lengths = np.diff(tokens.starts)
    train, eval_documents, num_tokens = [], [], 0
    for documents in clusters:
        length = int(lengths[documents].sum())
        if num_tokens < wanted and num_tokens + length <= len(tokens.ids) / 2:
            eval_documents += documents
            num_tokens += length
        else:
            train += documents
    return sorted(train), eval_documents  # eval in the order of the hash: its first windows are a random sample


def cluster(keys: list[bytes], groups: list[str | None]) -> list[list[int]]:
    """Positions joined by an equal key or an equal group, directly or through others; ascending within a cluster."""
    parent = list(range(len(keys)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    first: dict[bytes | str, int] = {}
    for number, (key, group) in enumerate(zip(keys, groups, strict=True)):
        for mark in (key,) if group is None else (key, group):
            parent[root(number)] = root(first.setdefault(mark, number))
    members: dict[int, list[int]] = {}
    for number in range(len(keys)):
        members.setdefault(root(number), []).append(number)
    return list(members.values())


def pack(tokens: Tokens, documents: list[int], sequence_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Full windows over the documents in this order: input_ids and labels, int32 [n, sequence_length] each.

    Labels are -100 on prompts. The tail that fills no window is left out, and so are windows without a label after
    their first token, whose label has nothing to be predicted from.
    """
    if not documents:
        empty = np.zeros((0, sequence_length), dtype=np.int32)
        return empty, empty
    spans = [(tokens.starts[number], tokens.starts[number + 1]) for number in documents]
    input_ids = np.concatenate([tokens.ids[start:end] for start, end in spans])
    labels = input_ids.copy()
    starts = np.concatenate([[0], np.cumsum([end - start for start, end in spans])])
    for start, length in zip(starts, tokens.prompts[documents], strict=False):
        labels[start : start + length] = IGNORED
    full = len(input_ids) // sequence_length * sequence_length
    input_ids, labels = (part[:full].reshape(-1, sequence_length) for part in (input_ids, labels))
    counted = (labels[:, 1:] != IGNORED).any(axis=1)
    return input_ids[counted], labels[counted]


def batch(
    num_windows: int, seed: int, step: int, rank: int, num_ranks: int, batch_size: int,
    micro: int = 0, micro_batches: int = 1,
) -> np.ndarray:  # fmt: skip
    """Which windows a rank reads in one micro-batch of a 0-based step: int64 [batch_size].

    A pure function. The epochs' seeded permutations follow each other without a gap, and each (step, micro-batch,
    rank) takes the next `batch_size`: every window once per epoch over all ranks, and the windows of a step depend on
    the size of the whole step only, not on how ranks and micro-batches divide it.
    """
    first = ((step * micro_batches + micro) * num_ranks + rank) * batch_size
    positions = np.arange(first, first + batch_size)
    return np.array([permutation(num_windows, seed, p // num_windows)[p % num_windows] for p in positions.tolist()])


@lru_cache(maxsize=4)
def permutation(num_windows: int, seed: int, epoch: int) -> np.ndarray:
    """Order of one epoch, int64 [num_windows]."""
    return np.random.default_rng([seed % 2**64, epoch]).permutation(num_windows)
