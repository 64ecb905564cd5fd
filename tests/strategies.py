"""Every strategy that has a yaml, built with given knobs: a new one joins the generic tests by existing."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parent.parent / "conf"


@cache
def read(name: str) -> DictConfig:
    return OmegaConf.load(CONF / f"{name}.yaml")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def make(group: str, option: str, **knobs: Any) -> Any:
    """The strategy conf/<group>/<option>.yaml with the knobs of conf/config.yaml, some of them replaced."""
    root = OmegaConf.merge(read("config"), knobs, {group: read(f"{group}/{option}")})
    return instantiate(root[group], _convert_="all")
