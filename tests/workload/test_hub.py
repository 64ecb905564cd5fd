"""One dataset in every format reads the same; a user's mistake is one line with the way out."""

import json
import shutil

import datasets
import pandas as pd
import pytest

from igrad.interfaces import Document
from igrad.workload.hub import Hub

ROWS = [{"title": f"Title, {n}", "body": f'Line one of {n}.\n"Line" two, ünïcode.'} for n in range(5)]


def write(path, rows=ROWS):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "saved"])
def test_every_format_reads_the_same(tmp_path, name):
    workload = Hub(write(tmp_path / name), text="body", prompt="{title}:\n")
    assert list(workload.documents()) == [Document(row["body"], f"{row['title']}:\n") for row in ROWS]


def test_paragraphs_of_a_text_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\nfirst\nstill first\n\n \nsecond\n")
    assert [document.text for document in Hub(str(path)).documents()] == ["first\nstill first", "second"]


def test_rows_without_text_are_left_out_and_broken_unicode_is_mended(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null}\n{"text": "  "}\n\n{"text": "half a pair \\ud800"}\n{"text": 7}\n')
    assert [document.text for document in Hub(str(path)).documents()] == ["half a pair ?", "7"]


def test_a_second_file_or_split_is_held_out(tmp_path):
    train, held = write(tmp_path / "a.jsonl", ROWS[:3]), write(tmp_path / "b.csv", ROWS[3:])
    sides = [document.held_out for document in Hub(train, eval_split=held, text="body").documents()]
    assert sides == [False] * 3 + [True] * 2
    splits = {"train": datasets.Dataset.from_list(ROWS[:3]), "validation": datasets.Dataset.from_list(ROWS[3:])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    workload = Hub(str(tmp_path / "saved"), eval_split="validation", text="body")
    assert [document.held_out for document in workload.documents()] == sides


@pytest.mark.parametrize("name", ["a.jsonl", "saved"])
def test_the_fingerprint_goes_by_content_and_columns(tmp_path, name):
    path = tmp_path / name
    first = Hub(write(path), text="body").fingerprint()
    copy = tmp_path / f"copy-{name}"
    (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
    assert Hub(str(copy), text="body").fingerprint() == first
    assert Hub(str(path), text="title").fingerprint() != first
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(path, ROWS[:4])
    assert Hub(str(path), text="body").fingerprint() != first


def mistakes(folder):
    bad = folder / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": oops}\n')
    listed = folder / "listed.jsonl"
    listed.write_text('{"text": ["a", "b"]}\n')
    scalar = folder / "scalar.jsonl"
    scalar.write_text("7\n")
    binary = folder / "binary.csv"
    binary.write_bytes(b"text\n\xff\xfe\n")
    parquet = folder / "bad.parquet"
    parquet.write_text("not parquet")
    (folder / "folder").mkdir()
    good = write(folder / "good.jsonl")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(folder / "splits")
    other = folder / "text.docx"
    other.write_text("")
    return [
        (Hub(str(folder / "none.jsonl")), "none.jsonl does not exist"),
        (Hub("./none"), "none does not exist"),
        (Hub(good), "no column 'text' in row 1 of .*; set workload.text to one of title, body"),
        (Hub(good, text="{title} {nope}"), "no column 'nope'"),
        (Hub(good, text="body", prompt="nope"), "no column 'nope' .* set workload.prompt"),
        (Hub(good, text="body", eval_split="validation"), "a file has no split 'validation'; .*second file"),
        (Hub(str(bad)), "bad.jsonl cannot be read as jsonl: line 2"),
        (Hub(str(scalar)), "line 1 is not an object"),
        (Hub(str(listed)), "column 'text' in row 1 .* is a list"),
        (Hub(str(binary)), "binary.csv cannot be read as csv"),
        (Hub(str(parquet)), "bad.parquet cannot be read as parquet"),
        (Hub(str(folder / "folder")), "folder is not a dataset saved by save_to_disk"),
        (Hub(str(folder / "splits"), split="dev"), "no split 'dev' in .*; set workload.split to one of train"),
        (Hub(str(other)), "must end in one of .jsonl"),
    ]  # fmt: skip


def test_mistakes_are_one_line_with_the_way_out(tmp_path):
    for workload, expected in mistakes(tmp_path):
        with pytest.raises(ValueError, match=expected) as error:
            list(workload.documents())
        assert "\n" not in str(error.value)


def test_a_missing_file_has_no_fingerprint(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Hub(str(tmp_path / "none.csv")).fingerprint()


@pytest.mark.parametrize("template", ["{open", "{}", "close}", "{{no column}}"])
def test_a_broken_template_is_refused_at_once(template):
    with pytest.raises(ValueError, match=r"workload\.prompt is no template"):
        Hub("a.csv", prompt=template)


def test_offline_and_not_cached_is_one_line_with_the_way_out(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError) as error:
        list(Hub("nobody/no-such-dataset-anywhere").documents())
    message = str(error.value)
    assert "\n" not in message and "nobody/no-such-dataset-anywhere" in message and "workload.path" in message
