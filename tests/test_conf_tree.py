"""Every file under conf/ composes and is known by the same word in igrad/ and tests/."""

from __future__ import annotations

import importlib

import pytest
import yaml

from igrad import compose
from igrad.compose import CONF
from igrad.config import GROUPS, KNOBS, build, check

ROOT = CONF.parent
OPTIONS = sorted(
    f"{path.parent.relative_to(CONF)}={path.stem}" for path in CONF.rglob("*.yaml") if path.parent.name in GROUPS
)
VALUES = {"workload=hub": ["workload.path=texts"], "model=hub": ["model.name=folder"]}  # for `???`
DELTAS = sorted(f"+{path.parent.name}={path.stem}" for name in ("rq", "scale") for path in (CONF / name).glob("*.yaml"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_a_strategy_with_a_test(option, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
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
def test_every_delta_composes(delta):
    points = compose.points([delta])
    for point in points:
        check(point.cfg)
    if delta.startswith("+rq="):
        assert len(points) > 1, "an rq file without hydra.mode: MULTIRUN is silently one run"
        assert {point.cfg.study for point in points} == {delta.removeprefix("+rq=")}
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


# What a method is made of; the rest (model, workload, batch, steps, ...) says at which scale it is tried.
METHOD = {
    "sparsifier", "importance", "threshold", "residual", "release", "packing", "collective", "deferral", "synchronizer",
    "density", "release_period", "release_fraction", "num_buckets", "components", "clip",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted((CONF / "scale").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_scale_sets_nothing_that_a_method_sets(path):
    content = yaml.safe_load(path.read_text())
    defaults = [default for default in content.pop("defaults", []) if isinstance(default, dict)]
    groups = {key.split("/")[-1] for default in defaults for key in default}
    assert not METHOD & (set(content) | groups)
    assert {*GROUPS, *KNOBS} > METHOD
