"""Every file under conf/ composes and is known by the same word in igrad/ and tests/."""

from __future__ import annotations

import importlib

import pytest
import yaml

from igrad import compose, config
from igrad.compose import CONF
from igrad.config import GROUPS, KNOBS, build, check, config_hash
from tests.sweeps import thin

ROOT = CONF.parent
OPTIONS = sorted(
    f"{path.parent.relative_to(CONF)}={path.stem}" for path in CONF.rglob("*.yaml") if path.parent.name in GROUPS
)
VALUES = {"workload=hub": ["workload.path=texts"], "model=hub": ["model.name=folder"]}  # for `???`
DELTAS = sorted(f"+{path.parent.name}={path.stem}" for name in config.DELTAS for path in (CONF / name).glob("*.yaml"))
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_a_strategy_with_a_test(option, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)  # an option may need a package that is an extra
    group = option.split("=")[0]
    [point] = compose.points([option, *VALUES.get(option, [])])
    check(point.cfg)
    node = point.cfg[group]
    strategy = build(node)
    if node.get("_partial_"):
        return  # one of torch's
    module = importlib.import_module(type(strategy).__module__)
    assert module.__name__.startswith(f"igrad.{group}."), f"{option} is implemented in {module.__name__}"
    word = module.__name__.rsplit(".", 1)[1]
    assert (ROOT / "igrad" / group / f"{word}.py").is_file()
    assert is_tested(group, word), f"tests/{group}/ has no test of {word}"


def is_tested(group: str, word: str) -> bool:
    """A test file of its own, or one that several strategies of the group share and that imports it."""
    folder = ROOT / "tests" / group
    if (folder / f"test_{word}.py").is_file():
        return True
    return any(f"igrad.{group}.{word}" in path.read_text() for path in folder.glob("test_*.py"))


MODULES = sorted(path for group in GROUPS for path in (ROOT / "igrad" / group).glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_module_has_a_yaml_or_serves_one_that_has(path):
    group = path.parent.name
    module = f"igrad.{group}.{path.stem}"
    targets = [yaml.safe_load(file.read_text()).get("_target_", "") for file in (CONF / group).glob("*.yaml")]
    has_yaml = any(target.startswith(f"{module}.") for target in targets)
    assert has_yaml or any(f"from {module} import" in other.read_text() for other in path.parent.glob("*.py"))


@pytest.mark.parametrize("delta", DELTAS)
def test_every_delta_composes(delta, monkeypatch):
    thin(monkeypatch)
    points = compose.points([delta])
    for point in points:
        check(point.cfg)
    if delta.startswith("+rq="):
        assert len(points) > 1, "an rq file without hydra.mode: MULTIRUN is silently one run"
        [study] = {point.cfg.study for point in points}
        assert f"{delta.removeprefix('+rq=')}_".startswith(f"{study}_")
        assert f"python run.py {delta}" in (CONF / "rq" / f"{delta[4:]}.yaml").read_text()


def one_value_per_axis(rq: str) -> list[str]:
    """Overrides that make an rq file's sweep a single point."""
    axes = yaml.safe_load((CONF / "rq" / f"{rq.removeprefix('+rq=')}.yaml").read_text())["hydra"]["sweeper"]["params"]
    return [f"{key}={str(values).split(',')[0]}" for key, values in axes.items()]


@pytest.mark.parametrize("rq", [delta for delta in DELTAS if delta.startswith("+rq=")])
@pytest.mark.parametrize("scale", [delta for delta in DELTAS if delta.startswith("+scale=")])
def test_every_rq_composes_with_every_scale(rq, scale):
    [point] = compose.points([rq, scale, *one_value_per_axis(rq)])
    check(point.cfg)


# ----------------------------------------------------------------------------------------------- methods


@pytest.fixture(scope="module")
def methods() -> dict[str, compose.Point]:
    points = compose.points([f"+method={','.join(METHODS)}", "seed=3", "-m"])
    return dict(zip(METHODS, points, strict=True))


def test_a_method_carries_its_name_and_is_no_other_methods(methods):
    assert [point.cfg.method for point in methods.values()] == METHODS
    assert all(point.name.startswith(f"method={name},seed=3-") for name, point in methods.items())
    assert len({config_hash(point.cfg) for point in methods.values()}) == len(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_is_in_one_line(name):
    first, second, *rest = (CONF / "method" / f"{name}.yaml").read_text().splitlines()
    assert first == "# @package _global_" and second.startswith("# ") and len(second) <= 120
    assert not any(line.startswith("#") for line in rest)


def test_a_name_is_no_part_of_what_a_run_is(methods):
    [spelt_out] = compose.points(["synchronizer=dense", "seed=3"])
    assert spelt_out.cfg.method is None and config_hash(spelt_out.cfg) == config_hash(methods["dense"].cfg)


def test_what_is_told_beside_a_method_counts_and_its_name_stays(methods):
    beside = ["seed=3", "release_period=32", "value_codec=int8"]
    before, after = compose.points(["+method=ig_adtopk", *beside]), compose.points([*beside, "+method=ig_adtopk"])
    for [point] in (before, after):
        assert (point.cfg.method, point.cfg.release_period) == ("ig_adtopk", 32)
        assert point.cfg.value_codec._target_.endswith("Int8")
        assert config_hash(point.cfg) != config_hash(methods["ig_adtopk"].cfg)


@pytest.mark.parametrize("argv", [["+rq=rq4", "+method=ig_adtopk", "packing=overlap", "sparsifier=topk"]])
def test_a_method_is_found_under_another_question(argv):
    [point] = compose.points(argv)
    assert (point.cfg.method, point.cfg.study) == ("ig_adtopk", "rq4")
    assert point.cfg.packing._target_.endswith("Overlap") and point.cfg.residual._target_.endswith("Delayed")


# What a method is made of; the rest (model, workload, batch, steps, buckets, ...) says at which scale it is tried.
METHOD = {
    "sparsifier", "importance", "threshold", "residual", "release", "packing", "collective", "deferral", "synchronizer",
    "density", "release_period", "release_fraction", "components", "clip", "value_codec", "index_codec",
    "learning_rate_factor", "method",
}  # fmt: skip


def keys(path) -> set[str]:
    """Knobs and groups that a delta sets."""
    content = yaml.safe_load(path.read_text())
    defaults = [default for default in content.pop("defaults", []) if isinstance(default, dict)]
    return set(content) | {key.split("/")[-1] for default in defaults for key in default}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_sets_what_methods_are_made_of(name):
    extra = {"num_processes"} if name == "alone" else set()  # one rank at any scale
    assert keys(CONF / "method" / f"{name}.yaml") <= METHOD | extra


@pytest.mark.parametrize("path", sorted((CONF / "scale").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_scale_sets_nothing_that_a_method_sets(path):
    assert not METHOD & keys(path)
    assert {*GROUPS, *KNOBS} > METHOD


def test_alone_is_one_rank_where_it_comes_after_the_scale():
    [point] = compose.points(["+scale=paper", "+method=alone"])
    assert point.cfg.num_processes == 1
