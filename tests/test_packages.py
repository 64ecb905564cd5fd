"""fetch: one file out of a wheel, checked, cached, and one clear line when it cannot be had."""

import hashlib
import multiprocessing
import zipfile

import pytest

from igrad.cache import cache, made_once
from igrad.packages import fetch

MEMBER = "texts/data/words.txt"
CONTENT = b"to be or not to be\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of one wheel, and an empty cache; pip looks nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "texts-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr(
            "texts-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: texts\nVersion: 1.0\nRequires-Dist: a-package-that-does-not-exist\n",
        )
        wheel.writestr("texts-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("texts-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("IGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetches_only_the_member_and_then_needs_no_index(index):
    path = fetch("texts==1.0", MEMBER, SHA256)
    assert path.read_bytes() == CONTENT
    assert [file for file in cache().rglob("*") if file.is_file() and not file.name.endswith(".lock")] == [path]
    next(index.glob("*.whl")).unlink()
    assert fetch("texts==1.0", MEMBER, SHA256) == path


def test_a_damaged_cached_file_is_fetched_again(index):
    path = fetch("texts==1.0", MEMBER, SHA256)
    path.write_bytes(CONTENT[:-1])
    assert fetch("texts==1.0", MEMBER, SHA256).read_bytes() == CONTENT


def test_a_wrong_checksum_names_the_file_and_both_sums(index):
    with pytest.raises(ValueError) as error:
        fetch("texts==1.0", MEMBER, "0" * 64)
    for word in (MEMBER, "0" * 64, SHA256):
        assert word in str(error.value)
    assert not [file for file in cache().rglob("words.txt*") if file.is_file()]


def test_what_cannot_be_had_is_one_line_with_the_way_out(index):
    with pytest.raises(ValueError) as error:
        fetch("texts==2.0", MEMBER, SHA256)
    message = str(error.value)
    assert "\n" not in message and "texts==2.0" in message and "copy the file" in message
    with pytest.raises(ValueError, match=r"no other\.txt in texts-1\.0"):
        fetch("texts==1.0", "other.txt", SHA256)


def count_and_make(path, log):
    def make(partial):
        with log.open("a") as file:
            file.write("made\n")
        partial.write_text("content")

    made_once(path, make)


def test_processes_that_need_it_together_make_it_once(tmp_path):
    path, log = tmp_path / "made" / "thing", tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=count_and_make, args=(path, log)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text() == "made\n" and path.read_text() == "content"


def test_a_failure_leaves_nothing_behind(tmp_path):
    def fail(partial):
        partial.write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        made_once(tmp_path / "thing", fail)
    assert [file.name for file in tmp_path.iterdir()] == [".thing.lock"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="IGRAD_CACHE"):
        made_once(tmp_path / "file" / "thing", lambda partial: None)
