"""Any text dataset: of the Hugging Face hub, a save_to_disk folder, or a jsonl, csv, parquet or txt file."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from string import Formatter
from typing import Any

from igrad.interfaces import Document
from igrad.packages import file_sha256

SUFFIXES = (".jsonl", ".csv", ".parquet", ".txt")


@dataclass(frozen=True)
class Hub:
    """Texts from a column, or a template over columns; with a prompt the loss counts on the text only."""

    path: str  # hub name, folder or file
    name: str | None = None  # configuration of a hub dataset that has several
    revision: str | None = None  # commit, tag or branch of a hub dataset; null = the newest
    split: str = "train"  # ignored for a file or a folder without splits
    eval_split: str | None = None  # split or second file that is held out; null = about 5 % of `split`
    text: str = "text"  # column, or a template such as "{title}\n{abstract}"
    prompt: str | None = None  # column or template that is context only

    def __post_init__(self) -> None:
        for key in ("text", "prompt"):
            try:
                columns(getattr(self, key) or "")
            except ValueError as error:
                raise ValueError(f"workload.{key} is no template: {error}") from error

    def fingerprint(self) -> str:
        described = {field.name: getattr(self, field.name) for field in fields(self)}
        for key in ("path", "eval_split"):
            if described[key] and is_local(described[key], exists=key == "path"):
                described[key] = content_digest(Path(described[key]).expanduser())
        return "hub-" + hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]

    def documents(self) -> Iterator[Document]:
        if self.eval_split is None:
            yield from self.read(self.path, self.split, None)
            return
        yield from self.read(self.path, self.split, False)
        if is_local(self.eval_split):
            yield from self.read(self.eval_split, self.split, True)
        elif is_file(self.path):
            raise ValueError(
                f"a file has no split '{self.eval_split}'; set workload.eval_split to a second file or to null"
            )
        else:
            yield from self.read(self.path, self.eval_split, True)

    def read(self, source: str, split: str, held_out: bool | None) -> Iterator[Document]:
        """The documents of one split; rows without text are left out."""
        for number, row in enumerate(self.rows(source, split), start=1):
            where = f"row {number} of {source}"
            text = render(self.text, row, "workload.text", where)
            prompt = "" if self.prompt is None else render(self.prompt, row, "workload.prompt", where)
            if text.strip():
                yield Document(text, prompt, held_out=held_out)

    def rows(self, source: str, split: str) -> Iterable[Mapping[str, Any]]:
        """Rows as mappings from column to value."""
        if not is_local(source, exists=True):
            return hub_rows(source, self.name, self.revision, split)
        path = Path(source).expanduser()
        if not path.exists():
            raise ValueError(nothing_there(path))
        if path.is_dir():
            return saved_rows(path, split)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"dataset file {source} must end in one of {', '.join(SUFFIXES)}")
        return file_rows(path)


def is_local(source: str, exists: bool = False) -> bool:
    """A file or folder by its spelling, there or not; with `exists` also any name of something that is there."""
    return source.startswith((".", "/", "~")) or is_file(source) or (exists and Path(source).exists())


def is_file(source: str) -> bool:
    return Path(source).suffix in SUFFIXES


def nothing_there(path: Path) -> str:
    return (
        f"dataset {path} does not exist (looked for {path.absolute()}); set workload.path to a file, folder or hub name"
    )


def columns(template: str) -> list[str]:
    """The columns that a template uses; a template without braces is itself a column."""
    if "{" not in template and "}" not in template:
        return [template]
    names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    if not names or not all(names):
        raise ValueError(f"'{template}' must name a column in each pair of braces")
    return names


def render(template: str, row: Mapping[str, Any], key: str, where: str) -> str:
    """A column's value, or a template with the columns filled in; an absent value is an empty text."""
    values = {}
    for column in columns(template):
        if column not in row:
            raise ValueError(f"no column '{column}' in {where}; set {key} to one of {', '.join(map(str, row))}")
        if isinstance(row[column], (list, dict)):
            raise ValueError(f"column '{column}' in {where} is a {type(row[column]).__name__}; {key} needs text")
        value = "" if row[column] is None else str(row[column])
        values[column] = value.encode("utf-8", "replace").decode()  # JSON can spell half a surrogate pair
    return template.format(**values) if "{" in template else values[template]


def file_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a jsonl, csv, parquet or txt file; a txt file's rows are its paragraphs, column `text`."""
    try:
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            with ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1024):
                    yield from batch.to_pylist()
            return
        with path.open(encoding="utf-8-sig", newline="" if path.suffix == ".csv" else None) as lines:
            if path.suffix == ".csv":
                csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses texts above 128 KiB
                yield from csv.DictReader(lines)
            elif path.suffix == ".jsonl":
                yield from json_rows(lines)
            else:
                yield from ({"text": text} for text in paragraphs(lines))
    except (OSError, ValueError, csv.Error) as error:  # undecodable bytes, JSON and Arrow errors are ValueErrors
        raise ValueError(f"dataset file {path} cannot be read as {path.suffix[1:]}: {first_line(error)}") from error


def json_rows(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """One object per line."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error.msg}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not an object")
            yield row


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines between blank lines, joined again."""
    held: list[str] = []
    for line in lines:
        if line.strip():
            held.append(line)
        elif held:
            yield "".join(held).rstrip("\n")
            held = []
    if held:
        yield "".join(held).rstrip("\n")


def saved_rows(folder: Path, split: str) -> Iterable[Mapping[str, Any]]:
    """Rows of a folder that `datasets` saved with save_to_disk, with splits or without."""
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"folder {folder} is not a dataset saved by save_to_disk ({first_line(error)}); give such a folder or a "
            f"file ending in {', '.join(SUFFIXES)}"
        ) from error
    if not isinstance(dataset, DatasetDict):
        return dataset
    if split not in dataset:
        raise ValueError(f"no split '{split}' in {folder}; set workload.split to one of {', '.join(dataset)}")
    return dataset[split]


def hub_rows(path: str, name: str | None, revision: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    """Rows of a hub dataset, downloaded once into the hub's own cache."""
    from datasets import load_dataset

    try:
        return load_dataset(path, name, revision=revision, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"dataset '{path}', split '{split}', could not be had from the hub ({first_line(error)}); check name, "
            "split and connection, or set workload.path to a file or workload to pubmed"
        ) from error


def content_digest(path: Path) -> str:
    """Digest of a file's content, or of names and contents below a folder."""
    if not path.exists():
        raise ValueError(nothing_there(path))
    if path.is_file():
        return file_sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("cache-"))
    named = [(str(file.relative_to(path)), file_sha256(file)) for file in files]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
