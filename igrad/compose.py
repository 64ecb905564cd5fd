"""From a command line to the points of its sweep, composed as Hydra will compose them.

Hydra reports a mistake over several lines and exits with 1, after earlier points have run. Here every point is
composed first, and every mistake becomes a ValueError in one line.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from igrad.config import CONF, DELTAS, GROUPS, KNOBS, SEE_HELP, config_hash, did_you_mean, digest, one_line

OUTPUTS = Path("outputs")
NOT_IN_NAMES = ("rq", "study", "tracking", "rerun", "cluster", "hydra")
MAX_NAME = 100
BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}"


@dataclass(frozen=True)
class Point:
    """One run: what to type after `python run.py`, and what comes out."""

    overrides: list[str]
    cfg: DictConfig

    @property
    def name(self) -> str:
        return run_name(self.overrides, config_hash(self.cfg))

    @property
    def directory(self) -> Path:
        return run_directory(self.cfg, self.overrides)


def run_name(overrides: list[str], key: str) -> str:
    """What was overridden, fit for a folder name and never empty, then the config hash."""
    told = [o for o in overrides if re.split(r"[.=@]", o.lstrip("+~"))[0] not in NOT_IN_NAMES]
    last = {o.lstrip("+~").split("=")[0]: o for o in told}  # of two values for one key, as Hydra takes them
    text = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", ",".join(o.lstrip("+~") for o in sorted(last.values())))
    return f"{text[: MAX_NAME - len(key) - 1].strip('._,-') or 'default'}-{key}"


def run_directory(cfg: DictConfig, overrides: list[str]) -> Path:
    """Folder of a run. The hash decides: another spelling of the same point finds the first one's folder."""
    key, study = config_hash(cfg), OUTPUTS / cfg.study
    for directory in sorted(study.glob(f"*-{key}")):
        return directory
    return study / run_name(overrides, key)


def parse(argv: list[str]) -> Any:
    """Hydra's command line arguments."""
    parser = get_args_parser()

    def error(message: str) -> None:
        apart = "; write -m and other flags last" if message.startswith("unrecognized arguments") else ""
        raise ValueError(f"{message}{apart}{SEE_HELP}")

    parser.error = error  # type: ignore[method-assign,assignment]
    return parser.parse_args(argv)


def points(argv: list[str]) -> list[Point]:
    """Every point that `python run.py <argv>` runs, in Hydra's order. ValueError in one line for a mistake."""
    args = parse(argv)
    version.setbase("1.3")
    search_path = create_config_search_path(str(CONF))
    if args.config_dir is not None:
        folder = Path(args.config_dir).resolve()
        if not folder.is_dir():
            raise ValueError(f"--config-dir: no folder '{args.config_dir}'")
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    hydra = Hydra.create_main_hydra2(task_name="run", config_search_path=search_path)
    try:
        return Composer(hydra, args.config_name or "config").points(args.overrides, args.multirun)
    finally:
        GlobalHydra.instance().clear()


class Composer:
    def __init__(self, hydra: Hydra, config_name: str):
        self.hydra = hydra
        self.config_name = config_name

    def compose(self, overrides: list[str]) -> DictConfig:
        """What all points of a sweep share; a single run's whole config. The axes of a sweep are left out."""
        return self.hydra.compose_config(
            self.config_name,
            list(overrides),
            RunMode.MULTIRUN,
            with_log_configuration=False,
            validate_sweep_overrides=False,
        )

    def points(self, overrides: list[str], multirun: bool) -> list[Point]:
        try:
            loader = self.hydra.config_loader
            assert isinstance(loader, ConfigLoaderImpl)
            for told in OverridesParser.create(loader).parse_overrides(overrides):
                if told.key_or_group in DELTAS and isinstance(told.value(), list):
                    raise ValueError(f"{told.key_or_group} takes one option, got a list: sweep over a,b with -m")
            base = self.compose(overrides)
            if not multirun and base.hydra.mode != RunMode.MULTIRUN:
                for told in OverridesParser.create(loader).parse_overrides(overrides):
                    if told.is_sweep_override():
                        a_list = "" if told.key_or_group in (*DELTAS, *GROUPS) else " (a list is written [1,2])"
                        raise ValueError(f"'{told.input_line}' is a sweep: add -m{a_list}")
                return [point(base)]
            if base.hydra.sweeper._target_ != BASIC_SWEEPER:
                raise ValueError(f"hydra/sweeper must be basic, got {base.hydra.sweeper._target_}")
            axes = [f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()]
            told = OverridesParser.create(loader).parse_overrides([*axes, *base.hydra.overrides.task])
            [batch] = BasicSweeper.split_arguments(told, None)
            bar = tqdm(
                batch, desc="composing", unit="point", leave=False, delay=3, disable=None
            )  # None: off a terminal
            return [point(loader.load_sweep_config(base, list(each))) for each in bar]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, AssertionError) as error:
            raise ValueError(self.explain(error, overrides)) from error

    def explain(self, error: Exception, overrides: list[str]) -> str:
        """Hydra's message for a mistake, in one line that names the key, what it got and the way out."""
        text = str(error)
        cause: BaseException | None = error
        while cause := cause.__cause__:
            text += "\n" + str(cause)
        where = match[1] if (match := re.search(r"^In '(.+?)':", text)) and match[1] != "config" else ""
        where = f" (conf/{where}.yaml)" if where else ""

        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            mark = error.context_mark or error.problem_mark
            return f"{mark.name}, line {mark.line + 1}: {error.problem}"
        if isinstance(error, MissingConfigException):
            found = re.search(r"Could not find '(.+)/(.*?)'", text)
            options = re.findall(r"^\t(\w\S*)$", text, re.M)
            if found and options:
                return f"unknown option '{found[2]}' of group '{found[1]}'; options: {', '.join(options)}"
        if (match := re.search(rf"^In '({'|'.join(DELTAS)})/.*Key '(.+?)' not", text, re.S)) and match[1] == match[2]:
            return f"{where.strip(' ()')} must begin with the line '# @package _global_'"
        if match := re.search(r"Key '(.+?)' (?:not in|is not in)[^\n]*\n\s*full_key: (\S+)", text):
            return f"unknown key '{match[2]}'{self.did_you_mean(match[2], overrides)}{where}"
        if match := re.search(r"Could not (?:override|delete from config\.) '(\S+?)'(?:\.| does not exist)", text):
            if match[1] in DELTAS:
                return f"group '{match[1]}' starts empty: use +{match[1]}=<option>"
            return f"unknown key '{match[1]}'{self.did_you_mean(match[1], overrides)}{where}"
        if match := re.search(r"Value '(.*)' of type '\w+' could not be converted to (\w+)\n\s*full_key: (\S+)", text):
            kind = {"Integer": "an integer", "Float": "a number"}.get(match[2], match[2])
            return f"{match[3]} must be {kind}, got '{match[1]}'{where}"
        if match := re.search(r"Multiple values for (\w+)\.", text):
            plus = "+" if match[1] in DELTAS else ""
            return f"{match[1]} is given more than once: write one {plus}{match[1]}=<option>"
        if match := re.search(r"field '(\w+)' is not Optional", text):
            return f"{match[1]} must have a value, got null{where}"
        if match := re.search(r"Value '(.*)' is not a valid bool[^\n]*\n\s*full_key: (\S+)", text):
            return f"{match[2]} must be true or false, got '{match[1]}'{where}"
        if match := re.search(r"Interpolation key '(.+?)' not found", text):
            return f"unknown key '{match[1]}' in ${{...}}{did_you_mean(match[1], KNOBS, SEE_HELP)}{where}"
        if match := re.search(r"(?:^|\n)([^\n]+)\n\s*full_key: (\S+)", text):
            return f"{match[2]}: {match[1]}{where}"
        if "Config group override must be a string" in text:
            return f"a group needs the name of an option: {shlex.join(overrides)}{SEE_HELP}"
        if isinstance(error, OverrideParseException):
            bad = error.override if getattr(error, "override", None) else shlex.join(overrides)
            return f"cannot parse '{bad}': {text.splitlines()[0]}; write key=value"
        text = text.split("\nConfig search path")[0].split("\nSee https")[0]
        return one_line(ValueError(text)) + where

    def did_you_mean(self, key: str, overrides: list[str]) -> str:
        """A close match among the keys beside the misspelt one; a mere list where it is short."""
        parent, _, word = key.rpartition(".")
        if not parent:
            return did_you_mean(word, {*KNOBS, *GROUPS, *DELTAS}, SEE_HELP)
        chosen = [o for o in overrides if re.split("[.=@]", o.lstrip("+~"))[0] in GROUPS and "." not in o.split("=")[0]]
        try:
            node = OmegaConf.select(self.compose(chosen), parent)
        except (HydraException, OmegaConfBaseException, ValueError):
            node = None
        known = [str(name) for name in node if not str(name).startswith("_")] if OmegaConf.is_dict(node) else []
        return did_you_mean(word, known, parent=parent) if known else f"; '{parent}' has no keys"


def point(cfg: DictConfig) -> Point:
    """A composed config without Hydra's own node, and the task overrides that made it."""
    overrides = list(cfg.hydra.overrides.task)
    cfg = cfg.copy()
    with open_dict(cfg):
        del cfg["hydra"]
    return Point(overrides, cfg)


def manifest(study: str, command: str, overrides: list[str], sweep: list[Point]) -> tuple[Path, dict[str, Any]]:
    """Where a sweep's manifest goes, and what it says: the points, so that an analysis knows them all."""
    rows = [{"name": p.directory.name, "overrides": p.overrides, "config_hash": config_hash(p.cfg)} for p in sweep]
    path = OUTPUTS / study / "sweeps" / f"{digest(sorted(row['config_hash'] for row in rows))}.json"
    return path, {"study": study, "command": command, "overrides": overrides, "points": rows}
