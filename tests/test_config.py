"""Composing and checking: what is wrong is said in one line; what is the same has one identity."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from igrad import compose, launch
from igrad.compose import CONF, MAX_NAME, run_name
from igrad.config import accepts, check, config_hash, plain


def compose_and_check(argv: list[str]) -> list[compose.Point]:
    points = compose.points(argv)
    for point in points:
        check(point.cfg)
    return points


BAD = {
    # key
    "relase_period=8": "unknown key 'relase_period'; did you mean 'release_period'?",
    "+densty=0.1": "unknown key 'densty'; did you mean 'density'?",
    "~densty": "unknown key 'densty'; did you mean 'density'?",
    "sparsifier.densty=0.1": "unknown key 'sparsifier.densty'; did you mean 'sparsifier.density'?",
    "+sparsifier.densty=0.1": "unknown key 'sparsifier.densty'; did you mean 'sparsifier.density'?",
    "+components.embedings=true": "unknown key 'components.embedings'; did you mean 'embeddings'?",
    "components.embedings=true": "unknown key 'components.embedings'; did you mean 'components.embeddings'?",
    "zzz=1": "unknown key 'zzz'; see python run.py --help",
    # group
    "sparsifer=topk": "unknown key 'sparsifer'; did you mean 'sparsifier'?",
    "sparsifier=topkk": "unknown option 'topkk' of group 'sparsifier'; options: adtopk",
    "+rq=nope": "unknown option 'nope' of group 'rq'; options:",
    "+rqq=rq3": "unknown key 'rqq'; did you mean 'rq'?",
    "rq=rq3": "group 'rq' starts empty: use +rq=<option>",
    "method=dense": "group 'method' starts empty: use +method=<option>",
    "+method=": "unknown option '' of group 'method'; options: adtopk_sync",
    "+method=[dense,bf16]": "method takes one option, got a list: sweep over a,b with -m",
    "collective.value_codec=int8": "must be of type ValueCodec, got 'int8'; choose it with value_codec=<option>",
    "model=null": "a group needs the name of an option",
    "~sparsifier": "sparsifier has no value",
    "sparsifier._target_=igrad.sparsifier.nope.Nope": "cannot import 'igrad.sparsifier.nope.Nope'",
    # type
    "density=abc": "density must be a number, got 'abc'",
    "seed=4.5": "seed must be an integer, got '4.5'",
    "rerun=maybe": "rerun must be true or false, got 'maybe'",
    "density=null": "density must have a value, got null",
    "sparsifier.density=abc": "sparsifier.density must be of type float, got 'abc'",
    "profile_window=[a,b]": "profile_window[0] must be an integer, got 'a'",
    # range
    "density=0": "density must be in (0, 1], got 0.0",
    "density=1.5": "density must be in (0, 1], got 1.5",
    "density=nan": "density must be in (0, 1], got nan",
    "release_fraction=2": "release_fraction must be in (0, 1], got 2.0",
    "block_numel=100": "block_numel must be at least 1024 or null, got 100",
    "release_period=0": "release_period must be at least 1, got 0",
    "num_processes=0": "num_processes must be at least 1, got 0",
    "seed=-1": "seed must be at least 0, got -1",
    "learning_rate=0": "learning_rate must be above 0 and finite, got 0.0",
    "warmup_fraction=1": "warmup_fraction must be in [0, 1), got 1.0",
    "sequence_length=1": "sequence_length must be at least 2, got 1",
    "profile_window=[5,5]": "profile_window must be [first, last) with 0 <= first < last, got [5, 5]",
    "precision=fp8": "precision must be one of fp32, bf16, got 'fp8'",
    "split=by_topic": "split must be one of shuffled, by_rank, got 'by_topic'",
    "clip=never": "clip must be one of global, local, got 'never'",
    "study=a/b": "study must be a plain folder name, got 'a/b'",
    "profile=nowhere.parquet": "profile must be 'auto' or a .parquet file, found no file 'nowhere.parquet'",
    "optimizer.weight_decay=-1": "optimizer: Invalid weight_decay value: -1",
    "cluster.threads_per_process=0": "cluster: threads_per_process must be at least 1, got 0",
    # grammar
    "release_period=1,2": "'release_period=1,2' is a sweep: add -m",
    "density=[1": "cannot parse 'density=[1'",
    "density": "cannot parse 'density'",
    "=3": "a group needs the name of an option",
    # values
    "seed=???": "seed has no value: set seed=...",
    "seed=${sed}": "unknown key 'sed' in ${...}; did you mean 'seed'?",
    # flags
    "--nope": "unrecognized arguments: --nope",
}


@pytest.mark.parametrize("argument", BAD)
def test_a_mistake_is_told_in_one_line(argument):
    with pytest.raises(ValueError) as caught:
        compose_and_check([argument])
    assert BAD[argument] in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_FILES = {
    "relase_period: 4": "unknown key 'relase_period'; did you mean 'release_period'? (conf/rq/mine.yaml)",
    "sparsifier: {densty: 4}": "unknown key 'sparsifier.densty'; did you mean 'sparsifier.density'?",
    "steps: abc": "steps must be an integer, got 'abc' (conf/rq/mine.yaml)",
    "steps: [abc": "mine.yaml, line 2: expected ',' or ']'",
    "defaults: [{override /sparsifer: topk}]": "unknown key 'sparsifer'; did you mean 'sparsifier'?",
    "defaults: [{override /sparsifier: topkk}]": "unknown option 'topkk' of group 'sparsifier'; options: adtopk",
    "hydra: {mode: MULTRUN}": "hydra.mode: Invalid value 'MULTRUN', expected one of [RUN, MULTIRUN]",
    "hydra: {sweper: {}}": "unknown key 'hydra.sweper'; did you mean 'hydra.sweeper'? (conf/rq/mine.yaml)",
    "hydra: {mode: MULTIRUN, sweeper: {params: {relase_period: '1,2'}}}":
        "unknown key 'relase_period'; did you mean 'release_period'?",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD_FILES)
def test_a_mistake_in_an_rq_file_is_told_in_one_line(line, tmp_path):
    (tmp_path / "rq").mkdir()
    (tmp_path / "rq" / "mine.yaml").write_text(f"# @package _global_\n{line}\n")
    with pytest.raises(ValueError) as caught:
        compose_and_check(["--config-dir", str(tmp_path), "+rq=mine"])
    assert BAD_FILES[line] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["workload=hub", "workload.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["workload=hub", "workload.path=empty.jsonl"], "the workload has no documents"),
        (["workload=hub"], "workload.path has no value: set workload.path=..."),
        (["sequence_length=129"], "sequence_length must be at most the model's context of 128, got 129"),
        (["cluster.device=cuda", "num_processes=1000"], "needs one GPU per rank"),
    ],
)
def test_a_mistake_about_data_is_told_before_anything_starts(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError) as caught:
        launch.plan(argv)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_rq_file_without_its_package_line_is_told_so(tmp_path):
    (tmp_path / "rq").mkdir()
    (tmp_path / "rq" / "mine.yaml").write_text("# python run.py +rq=mine\n# @package _global_\nsteps: 5\n")
    with pytest.raises(ValueError, match=r"rq/mine\.yaml must begin with the line '# @package _global_'"):
        compose.points(["--config-dir", str(tmp_path), "+rq=mine"])


# --------------------------------------------------------------------------------------------- sweeping


def test_a_sweep_is_the_product_of_its_axes():
    points = compose.points(["release_period=1,2", "seed=1,2,3", "-m"])
    assert [(p.cfg.release_period, p.cfg.seed) for p in points] == list(itertools.product((1, 2), (1, 2, 3)))


def test_the_command_line_replaces_an_axis_of_the_file_and_keeps_the_others(tmp_path):
    (tmp_path / "rq").mkdir()
    (tmp_path / "rq" / "mine.yaml").write_text(
        "# @package _global_\nstudy: mine\n"
        "hydra: {mode: MULTIRUN, sweeper: {params: {release_period: '1,2', seed: '3,4'}}}\n"
    )
    argv = ["--config-dir", str(tmp_path), "+rq=mine"]
    both = [(p.cfg.release_period, p.cfg.seed) for p in compose.points(argv)]  # a sweep without -m
    assert both == [(1, 3), (1, 4), (2, 3), (2, 4)]
    replaced = [(p.cfg.release_period, p.cfg.seed) for p in compose.points([*argv, "release_period=8"])]
    assert replaced == [(8, 3), (8, 4)]


# --------------------------------------------------------------------------------------------- identity


def hash_of(*argv: str) -> str:
    [point] = compose.points(list(argv))
    return config_hash(point.cfg)


def test_identity_is_what_changes_the_numbers():
    assert hash_of() == hash_of("tracking=none") == hash_of("study=other") == hash_of("rerun=true")
    assert hash_of() == hash_of("cluster.threads_per_process=2") == hash_of("checkpoint_every=5")
    assert hash_of() == hash_of("density=1e-2", "seed=42")  # another spelling
    changes = ("seed=43", "num_processes=3", "split=by_rank", "sparsifier=adtopk")
    assert len({hash_of(), *map(hash_of, changes)}) == 1 + len(changes)


def test_identity_survives_the_run_directory(tmp_path):
    [point] = compose.points(["learning_rate=1e-5", "density=1", "max_grad_norm=null"])
    OmegaConf.save(OmegaConf.create(plain(point.cfg)), tmp_path / "config.yaml")
    assert config_hash(OmegaConf.load(tmp_path / "config.yaml")) == config_hash(point.cfg)


def test_identity_includes_the_content_of_files(tmp_path):
    texts, same = tmp_path / "texts.jsonl", tmp_path / "same.jsonl"
    hashes = []
    for content in ('{"text": "a"}\n', '{"text": "bb"}\n'):
        texts.write_text(content)
        same.write_text(content)
        hashes.append(hash_of("workload=hub", f"workload.path={texts}"))
        assert hashes[-1] == hash_of("workload=hub", f"workload.path={same}")
    assert hashes[0] != hashes[1]


def test_two_spellings_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [first], [second] = compose.points(["density=0.02"]), compose.points(["density=2e-2", "seed=42"])
    assert first.directory != second.directory  # neither exists yet
    first.directory.mkdir(parents=True)
    assert second.directory == first.directory


@given(st.lists(st.text(min_size=1, max_size=60), max_size=8))
def test_names_are_folder_names(overrides):
    name = run_name(overrides, "0123abcd")
    assert re.fullmatch(r"[A-Za-z0-9_=+][A-Za-z0-9_.,=+-]*-0123abcd", name)
    assert len(name) <= MAX_NAME


def test_names_tell_the_task_overrides_alone():
    overrides = ["+rq=rq3", "study=s", "tracking=none", "tracking.project=p", "rerun=true", "release_period=4"]
    assert run_name(overrides, "k") == "release_period=4-k"
    assert run_name([], "k") == "default-k"
    assert run_name(["density=0.1", "seed=1", "+density=0.2"], "k") == "density=0.2,seed=1-k", "the last one counts"
    assert run_name(["workload.path=/a/b c.txt"], "k") == "workload.path=_a_b_c.txt-k"


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (float, [1, 0.5], ["a", True, None]),
        (int, [1], [0.5, "1", True]),
        (bool, [True], [1, "yes"]),
        (str, ["a"], [1, None]),
        (float | None, [None, 1.0], ["a"]),
        (tuple[int, int], [[1, 2]], [3, "a"]),
    ],
)
def test_yaml_values_against_annotations(hint, good, bad):
    assert all(accepts(hint, value) for value in good)
    assert not any(accepts(hint, value) for value in bad)


def test_conf_is_where_run_py_looks():
    assert (CONF / "config.yaml").is_file()
    assert (CONF.parent / "run.py").is_file()
