"""Local folders as they are; what is missing is one line."""

import shutil

import huggingface_hub
import pytest

from igrad.model import context_length
from igrad.model.glass import Glass
from igrad.model.hub import Hub


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(Glass().prepare(), tmp_path / "model")


def test_a_local_folder_is_used_as_it_is(folder):
    assert Hub(str(folder)).prepare() == folder


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_an_incomplete_folder_names_what_it_lacks(folder, file):
    (folder / file).unlink()
    with pytest.raises(ValueError, match=rf"has no .*{file[-5:]}"):
        Hub(str(folder)).prepare()


def test_a_folder_without_tokenizer_is_refused(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="has no tokenizer"):
        Hub(str(folder)).prepare()


def test_a_missing_shard_is_named(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    with pytest.raises(ValueError, match=r"has no model-2\.safetensors"):
        Hub(str(folder)).prepare()


@pytest.mark.parametrize("name", ["./no/such/folder", "a/b/c"])
def test_neither_folder_nor_name(name):
    with pytest.raises(ValueError, match=name):
        Hub(name).prepare()


def test_offline_and_not_cached_is_one_line_with_the_way_out(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError) as error:
        Hub("nobody/no-such-model-anywhere").prepare()
    message = str(error.value)
    assert "\n" not in message and "nobody/no-such-model-anywhere" in message and "local folder" in message


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"max_position_embeddings": 2048}', 2048),
        ('{"n_positions": 1024, "n_ctx": 512}', 1024),
        ('{"text_config": {"max_position_embeddings": 77}}', 77),
        ('{"alibi": true}', None),
    ],
)
def test_context_length_under_its_many_names(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(config)
    assert context_length(tmp_path) == expected
