"""The converted model is the package's own, in logits and token ids; the package serves as oracle."""

import importlib
import sys
from itertools import islice

import numpy as np
import pytest
import torch

from igrad.model import context_length, load_model, load_tokenizer
from igrad.model.glass import PACKAGE, TOKENIZER, WEIGHTS, Glass
from igrad.packages import fetch
from igrad.workload.pubmed import PubMed
from igrad.workload.wiki import Wiki

SOURCES = {
    "autograd": "0fc890f94410e0eba3aa04a8e4a200854d17a287fe75472419cdc78b98482e63",
    "config": "592734d65baeb3ebbae7b5a89ee5976d3b0f0f6a787d8cabb229c7fd08f8b905",
    "model": "fa86bef0cfac7d40496077863209345c78454d41050c80cd7e950efa7a7b53d9",
    "nn": "536afeceef1f94a523c333af5b79443af03add06c9eb72435af950f6df3f8c33",
    "steps": "fd27e393891a053df2d581c8dd9de52103a87de0414a493b9dacc2d7fe3a2c46",
    "tokenizer": "d2072754113bd681fe80cb173ceb48654dfff35f9e4cb9a0eb36cf8ec8ed7304",
    "trace": "727d91cd0358f1ef5f47d60d43162718a3ae01eaa7e167650301a2a567bfbd1e",
}

ODD = [
    "", " ", "\n", "  two  spaces \n\n end ", "\t\r\n\x00\x0b", "▁a ▁▁b", "⁇", "\ufeffx\u00a0y\u200bz",
    "e\u0301\u0301 \u212b ﬁ A\u030a 한글 각", "🙂🙂 👩‍👩‍👧 unknown, each for itself: 日本語", "\u0085line\u2028line",
    "<eos> <unk><pad>", "a" * 300,
]  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package's numpy sources, imported from a temporary folder."""
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "oracle").mkdir()
    (folder / "oracle" / "__init__.py").write_text("")
    for name, sha256 in SOURCES.items():
        source = fetch(PACKAGE, f"glassllm/{name}.py", sha256)
        (folder / "oracle" / f"{name}.py").write_bytes(source.read_bytes())
    sys.path.insert(0, str(folder))
    yield importlib.import_module("oracle.model"), importlib.import_module("oracle.tokenizer")
    sys.path.remove(str(folder))


def test_logits_equal_the_package(package):
    folder = Glass().prepare()
    oracle = package[0].GlassLM.load(fetch(PACKAGE, *WEIGHTS))
    model = load_model(folder).eval()
    ids = np.random.default_rng(0).integers(0, 1024, (3, context_length(folder)))
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(logits, oracle(ids).data, atol=1e-4, rtol=0)


def test_loads_in_float32_with_sdpa_and_tied_embeddings():
    model = load_model(Glass().prepare())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == "sdpa"
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_token_ids_equal_the_package(package):
    oracle = package[1].Tokenizer.load(fetch(PACKAGE, *TOKENIZER))
    tokenizer = load_tokenizer(Glass().prepare())
    texts = [*ODD, *(document.text for source in (PubMed(), Wiki()) for document in islice(source.documents(), 300))]
    got = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    for text, ids in zip(texts, got, strict=True):
        assert ids == oracle.encode(text), repr(text[:80])
        assert tokenizer.decode(ids).replace("<unk>", "⁇") == oracle.decode(ids)


def test_special_tokens():
    tokenizer = load_tokenizer(Glass().prepare())
    special = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert special == [0, 1, 2, 3]
    assert tokenizer("a word")["input_ids"] == tokenizer("a word", add_special_tokens=False)["input_ids"]
