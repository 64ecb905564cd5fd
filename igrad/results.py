"""Run directories as tidy tables, from files alone: one row per run, per logged window, per component, per sweep point.

Knobs are the columns a sweep can vary. They come from a run's config.yaml: top-level keys by their name, a group
by its option (`residual` = full) and what the option leaves to choose by a dotted name (`importance.alpha`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from igrad.config import CONF, NOT_IDENTITY, digest
from igrad.files import read_summary

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times faster, where libyaml is
PER_STEP = ("wire_bytes", "payload_bytes")  # by these names; their totals are said to be totals
QUALITY = ("val_loss", "val_ppl", "val_accuracy")
MAX_LABEL = 60


@dataclass(frozen=True)
class Study:
    """What outputs/<name>/ holds. Every frame names the run in `run` and carries the knobs."""

    name: str
    runs: pd.DataFrame  # one row per finished run
    curves: pd.DataFrame  # one row per run and logged window
    components: pd.DataFrame  # one row per run, logged window and component
    sweeps: pd.DataFrame  # one row per sweep and point, with its status
    knobs: tuple[str, ...]
    incomplete: str | None = None  # why a reader must not take it for the whole; None = it is whole
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)  # run -> its config.yaml

    def of(self, runs: pd.DataFrame, incomplete: str | None = None) -> Study:
        """The study of some of its runs."""
        curves, components = (f[f["run"].isin(runs["run"])] if len(f) else f for f in (self.curves, self.components))
        return dataclasses.replace(self, runs=runs, curves=curves, components=components, incomplete=incomplete)

    def only(self, **knobs: Any) -> Study:
        """The runs with these values: `study.only(steps=200)`. ValueError where there is none."""
        chosen = self.runs
        for name, value in knobs.items():
            if name not in self.knobs:
                raise ValueError(f"{self.name} has no knob '{name}'; known: {', '.join(self.knobs)}")
            chosen = chosen[chosen[name] == value]
        if chosen.empty:
            raise ValueError(f"{self.name} has no finished run with {label(knobs)}")
        return self.of(chosen, self.incomplete)

    def table(self) -> str:
        """The knobs that vary, final loss, bytes and time per step: a line per run."""
        varied = [name for name in self.knobs if self.runs[name].map(repr).nunique() > 1]
        shown = [*varied, *(name for name in ("val_loss", "wire_bytes", "step_ms") if name in self.runs)]
        return self.runs[shown].to_string(index=False, float_format="{:.5g}".format)

    def complete(self) -> Study:
        """The runs of the sweeps whose points are all finished. ValueError, naming the rest, where there is none."""
        whole = self.sweeps.groupby("sweep")["status"].transform(lambda status: (status == "finished").all())
        runs = self.runs[self.runs["run"].isin(self.sweeps.loc[whole.astype(bool), "name"])]
        if runs.empty:
            raise ValueError(f"{self.name}: no sweep is complete; {self.unfinished() or 'no manifest in sweeps/'}")
        return self.of(runs)

    def partial(self) -> Study:
        """Every finished run, marked as incomplete where some belong to no complete sweep."""
        try:
            whole = self.complete().runs
        except ValueError:
            whole = self.runs.iloc[:0]
        if len(whole) == len(self.runs):
            return self
        points = self.sweeps.drop_duplicates("name")
        return self.of(self.runs, f"incomplete: {(points['status'] == 'finished').sum()} of {len(points)} runs")

    def unfinished(self) -> str:
        """One line per incomplete sweep: how much is missing, the first such point and why, and how to go on."""
        lines = []
        for sweep, points in self.sweeps.groupby("sweep", sort=True):
            rest = points[points["status"] != "finished"]
            if len(rest):
                first = rest.iloc[0]
                why = f" ({first['error']})" if first["error"] else ""
                lines.append(
                    f"sweep {sweep}: {len(rest)} of {len(points)} runs are not finished, "
                    f"first {first['name']}: {first['status']}{why}; go on with: {first['command']}"
                )
        return "\n".join(lines)

    def settings(self, axes: Iterable[str]) -> dict[str, Study]:
        """The study by what else varies than the axes and the seed: only runs of one setting may be compared.

        The label names what tells a setting from the others; it is empty where there is one only.
        """
        known = {*axes, "seed", *NOT_IDENTITY}
        rest = [name for name in self.knobs if name not in known and name.split(".")[0] not in known]
        varying = [name for name in rest if self.runs[name].map(repr).nunique() > 1]
        varying = [name for name in varying if name.split(".")[0] == name or name.split(".")[0] not in varying]
        if not varying:
            return {"": self}
        labels = self.runs[varying].apply(lambda row: label(row.dropna()), axis=1)
        return {str(one): self.of(self.runs[labels == one], self.incomplete) for one in sorted(labels.unique())}

    def setting(self, axes: Iterable[str]) -> Study:
        """The one setting. ValueError, naming them, where there are several."""
        settings = self.settings(axes)
        if len(settings) > 1:
            raise ValueError(f"{self.name} holds {len(settings)} settings; choose with .only(): {'; '.join(settings)}")
        return next(iter(settings.values()))


def load(study: str, root: str | Path = "outputs") -> Study:
    """Everything of one study; empty frames where nothing has finished. ValueError where a finished run is damaged."""
    folder = Path(root) / study
    configs: dict[str, dict[str, Any]] = {}
    told: dict[str, dict[str, Any]] = {}
    rows, curve_rows, component_frames = [], [], []
    for directory in sorted(path.parent for path in folder.glob("*/config.yaml")):
        summary = read_summary(directory)
        if summary.get("status") != "finished":
            continue
        try:
            config = configs[directory.name] = yaml.load((directory / "config.yaml").read_text(), LOADER)
            older = {key: value for key, value in defaults().items() if key not in config}
            chosen = told[directory.name] = knobs({**config, **older})
            profiled = {"profile_file": profile_file(summary.get("profile"), Path(root))}
            rows.append({"run": directory.name, **chosen, **results(summary), **profiled})
            lines = (directory / "metrics.jsonl").read_text().splitlines()
            curve_rows += [{"run": directory.name, **json.loads(line)} for line in lines]
            if (directory / "components.parquet").exists():
                component_frames.append(pd.read_parquet(directory / "components.parquet").assign(run=directory.name))
        except (OSError, ValueError, KeyError, yaml.YAMLError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{directory} is damaged ({why}); remove it and repeat the run") from error
    names = tuple(dict.fromkeys(name for chosen in told.values() for name in chosen))
    runs = pd.DataFrame(rows)
    by_run = runs[["run", *names]] if rows else runs

    def with_knobs(frame: pd.DataFrame) -> pd.DataFrame:
        return by_run.merge(frame, on="run") if len(frame) else pd.DataFrame({"run": []})

    curves = pd.DataFrame(curve_rows)
    measured = [name for name in curves if name not in ("run", "step")]
    curves = curves.astype(dict.fromkeys(measured, float))  # what was not measured: NaN
    components = pd.concat(component_frames) if component_frames else pd.DataFrame()
    runs = runs if rows else pd.DataFrame({"run": []})
    by_component = with_knobs(components)
    return Study(study, runs, with_knobs(curves), by_component, sweeps(study, root), names, configs=configs)


def runs(study: str, root: str | Path = "outputs") -> pd.DataFrame:
    """One row per finished run: its knobs, then its final, best and initial quality, means, totals and sizes."""
    return load(study, root).runs


def curves(study: str, root: str | Path = "outputs") -> pd.DataFrame:
    """One row per finished run and row of its metrics.jsonl."""
    return load(study, root).curves


def components(study: str, root: str | Path = "outputs") -> pd.DataFrame:
    """One row per finished run, logged window and component."""
    return load(study, root).components


def sweeps(study: str, root: str | Path = "outputs") -> pd.DataFrame:
    """One row per sweep and point: sweep, command, name, overrides, config_hash, status, error.

    Status is finished, failed, or missing (no run directory that is this point's).
    """
    folder = Path(root) / study
    rows = []
    for path in sorted(folder.glob("sweeps/*.json")):
        manifest = json.loads(path.read_text())
        for point in manifest["points"]:
            summary = read_summary(folder / point["name"])
            ours = summary.get("config_hash") == point["config_hash"]
            rows.append({
                "sweep": path.stem,
                "command": manifest["command"],
                **point,
                "overrides": " ".join(point["overrides"]),
                "status": summary["status"] if ours else "missing",
                "error": summary.get("error") if ours else None,
            })  # fmt: skip
    columns = ["sweep", "command", "name", "overrides", "config_hash", "status", "error"]
    return pd.DataFrame(rows, columns=columns)


# ------------------------------------------------------------------------------------------------ one run


def results(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary in one row: quality is the final one; `best_` and `initial_` are said."""
    totals = summary["totals"]
    return {
        **{name: summary["final"][name] for name in QUALITY},
        **{f"{when}_{name}": summary[when][name] for when in ("best", "initial") for name in QUALITY},
        **summary["means"],
        **{f"total_{name}" if name in PER_STEP else name: value for name, value in totals.items()},
        "tau": summary["tau"],
        "num_important": len(summary["important"]),
        "num_low": len(summary["low"]),
        "important": tuple(summary["important"]),
        "low": tuple(summary["low"]),
        "scores": summary.get("scores") or {},
        **{name: summary.get(name) for name in ("achieved_density", "mapped_share", "startup_s", "git")},
    }


def profile_file(told: str | None, root: Path) -> str | None:
    """Where a run's profile lies now: its path is relative to the folder of outputs/, which may have been renamed."""
    if told is None:
        return None
    places = (root.parent / told, root / "profiles" / Path(told).name)
    return str(next((path for path in places if path.is_file()), places[0]))


@functools.cache
def defaults() -> dict[str, Any]:
    """The plain values of conf/config.yaml: what a run has from before a key was there."""
    told = yaml.safe_load((CONF / "config.yaml").read_text())
    return {key: value for key, value in told.items() if not isinstance(value, dict | list)}


def knobs(config: dict[str, Any]) -> dict[str, Any]:
    """What distinguishes a resolved config from another, flat: {"seed": 42, "residual": "full", …}.

    A group's key that follows another knob (`sparsifier.density: ${density}`) is left out: it says nothing new.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and (CONF / key).is_dir():
            flat[key], own = option(key, value, config)
            flat.update(own)
        elif isinstance(value, dict):
            flat.update({f"{key}.{name}": plain(item) for name, item in value.items()})
        else:
            flat[key] = plain(value)
    return flat


def option(group: str, node: dict[str, Any], config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Which conf/<group>/*.yaml a node comes from, and its own keys by dotted name.

    Of the files with its `_target_` it is the one that agrees with it in most keys; the module's word where none has.
    """
    files = {name: told for name, told in yamls(group).items() if told.get("_target_") == node.get("_target_")}

    def agreeing(name: str) -> int:
        return sum(follow(told, config) == node.get(key) for key, told in files[name].items())

    word = str(node.get("_target_")).split(".")[-2:][0]
    name = max(files, key=agreeing) if files else word
    follows = {key for key, told in files.get(name, {}).items() if told != follow(told, config) == node.get(key)}
    own = {f"{group}.{key}": plain(value) for key, value in node.items() if not key.startswith("_")}
    return name, {key: value for key, value in own.items() if key.split(".", 1)[1] not in follows}


@functools.cache
def yamls(group: str) -> dict[str, dict[str, Any]]:
    """The options of a group by name, what they take from others of the group filled in."""
    files = {path.stem: yaml.safe_load(path.read_text()) or {} for path in sorted((CONF / group).glob("*.yaml"))}

    def filled(name: str) -> dict[str, Any]:
        told = dict(files[name])
        bases = [base for base in told.pop("defaults", []) if base in files]
        return {**{key: value for base in bases for key, value in filled(base).items()}, **told}

    return {name: filled(name) for name in files}


def follow(told: Any, config: dict[str, Any]) -> Any:
    """A yaml value, or what it refers to (`${density}`) in a config."""
    reference = re.fullmatch(r"\$\{([\w.]+)\}", told) if isinstance(told, str) else None
    if not reference:
        return told
    value: Any = config
    for word in reference[1].split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return value


def plain(value: Any) -> Any:
    """A config value as a table can hold and group it."""
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def label(knobs: Any) -> str:
    """`density=0.01,steps=200`; a long one is cut and ends in a hash, so that it is still its own."""
    text = ",".join(f"{name}={value}" for name, value in knobs.items())
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 9]}-{digest(text)}"


# ------------------------------------------------------------------------------------------------ many runs


def over_seeds(frame: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Mean of each column over the seeds and its sample sd in `<column>_sd` (NaN for one seed); `num_seeds`.

    ValueError where two rows share `by` and the seed: something else varies, and must not be averaged away.
    """
    unique(frame, [*by, "seed"])
    groups = frame.groupby(list(by), dropna=False, sort=True)
    told = {"num_seeds": groups["seed"].nunique()}
    for name in columns:
        told[name], told[f"{name}_sd"] = groups[name].mean(), groups[name].std(ddof=1)
    return pd.DataFrame(told).reset_index()


def unique(frame: pd.DataFrame, by: Sequence[str]) -> None:
    """ValueError where two rows agree in `by`."""
    twice = frame.loc[frame.duplicated(list(by)), list(by)]
    if len(twice):
        first = label(twice.to_dict("records")[0])
        raise ValueError(f"two rows have {first}: they differ in another knob than {', '.join(by)}; split by it first")


def baseline(frame: pd.DataFrame, is_baseline: pd.Series, pair_by: Sequence[str], column: str) -> pd.Series:
    """For each row the column's value in the baseline row with the same `pair_by`; NaN where there is none."""
    unique(frame[is_baseline], pair_by)
    known = frame[is_baseline].set_index(list(pair_by))[column]
    keys = pd.MultiIndex.from_frame(frame[list(pair_by)]) if len(pair_by) > 1 else pd.Index(frame[pair_by[0]])
    return pd.Series(known.reindex(keys).to_numpy(dtype=np.float64), index=frame.index)
