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


CODECS = {"value_codec": "fp32", "index_codec": "int32"}  # what a collective is made of, unless told otherwise


def make(group: str, option: str, **knobs: Any) -> Any:
    """The strategy conf/<group>/<option>.yaml with the knobs of conf/config.yaml, some of them replaced.

    `value_codec` and `index_codec` name the options that a collective is made with.
    """
    codecs = {codec: read(f"{codec}/{knobs.pop(codec, default)}") for codec, default in CODECS.items()}
    root = OmegaConf.merge(read("config"), knobs, codecs, {group: read(f"{group}/{option}")})
    return instantiate(root[group], _convert_="all")
