"""Weights & Biases around the runs: a saved workspace and a report per study, tables of results, runs fetched back.

python -m igrad.track workspace [rq1 ...] --entity ENTITY --project PROJECT
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from igrad.command_line import Parser, output_file
from igrad.config import CONF, one_line
from igrad.tracking.artifacts import FETCHED
from igrad.tracking.wandb import TABLES, Wandb, has_api_key, settings

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------------------------------------ command line


def main(argv: list[str] | None = None) -> int:
    """0: done; 2: a mistake, told in one line."""
    try:
        told = arguments(argv)
        save_workspaces(told.studies, told.entity, told.project, told.out)
    except ValueError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m igrad.track", description="Weights & Biases around the runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="workspace")
    about = "Save a new workspace and report per study: filtered, grouped by what it sweeps, panels arranged."
    workspace = commands.add_parser("workspace", help=about, description=about)
    workspace.add_argument("studies", nargs="*", metavar="study", help="rq3, rq5_frontier, …; default: all of conf/rq")
    workspace.add_argument("--entity", help="user or team (yours)")
    workspace.add_argument("--project", default="igrad", help="that the runs are in (igrad)")
    workspace.add_argument("--out", type=Path, help="write them to this file as JSON instead; needs no account")
    return parser.parse_args(argv)


def save_workspaces(studies: list[str], entity: str | None, project: str, out: Path | None) -> None:
    """Make new ones, or write them to `out`. ValueError: unknown study, missing library, no account, server trouble."""
    known = swept()
    for study in studies:
        if study not in known:
            raise ValueError(f"unknown study '{study}'; known: {', '.join(known)}")
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        from igrad import panels
    except ImportError as error:
        raise ValueError(f"workspace needs {error.name}: pip install 'igrad[track]'") from error
    if out is None:
        api = server()
        with asking():
            entity = entity or api.default_entity
    made = {}
    for study in studies or known:
        knobs, heads = known[study]
        made[study] = {
            "workspace": panels.workspace(study, knobs, entity or "", project),
            "report": panels.report(study, knobs, heads, entity or "", project),
        }
    if out is not None:
        write(made, out)
        return
    for study, views in made.items():
        for view in views.values():
            with asking():
                print(f"{study}: {view.save().url}")


def write(made: dict[str, dict[str, Any]], out: Path) -> None:
    """What would be saved, as W&B stores it. ValueError where the file cannot be written."""

    def stored(view: Any) -> Any:
        return json.loads(view._to_model().model_dump_json(by_alias=True, exclude_none=True))

    specs = {study: {name: stored(view) for name, view in views.items()} for study, views in made.items()}
    try:
        output_file(out).write_text(json.dumps(specs, indent=1))
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}") from error
    print(out)


class Swept(NamedTuple):
    knobs: list[str]  # that a study's files in conf/rq sweep
    heads: list[str]  # the comments that such a file starts with: what it asks, and the command


def swept() -> dict[str, Swept]:
    """Every study of conf/rq."""
    known: dict[str, Swept] = {}
    for path in sorted((CONF / "rq").glob("*.yaml")):
        text = path.read_text()
        told = yaml.safe_load(text)
        study = known.setdefault(told["study"], Swept([], []))
        axes = (key.lstrip("+") for key in told["hydra"]["sweeper"]["params"])
        study.knobs.extend(key for key in axes if key not in study.knobs)
        lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        study.heads.append("\n".join(re.sub(r"^# (?=python )", "", line) for line in lines if "@package" not in line))
    return known


# ------------------------------------------------------------------------------------------------ results


def log_tables(
    study: str, tables: dict[str, pd.DataFrame], project: str = "igrad", mode: str = "offline",
    directory: str | Path = "outputs",
) -> str:  # fmt: skip
    """Log tables under their names, as a run `<study>-tables` of job type `tables` in the study's group.

    Returns its page, or offline its folder in `directory`/wandb, for `wandb sync`. ValueError for an online run
    without a key, or what the server says.
    """
    Wandb(mode=mode, project=project, study=study)  # checks them
    import wandb

    (Path(directory) / "wandb").mkdir(parents=True, exist_ok=True)
    with asking():
        run = wandb.init(
            mode=mode, project=project, group=study, name=f"{study}-{TABLES}", job_type=TABLES, tags=[study[:64]],
            dir=directory, settings=settings(),
        )  # fmt: skip
        run.log({name: wandb.Table(dataframe=printable(table)) for name, table in tables.items()})
        run.finish()
    return run.url if mode == "online" else str(Path(run.dir).parent)


def printable(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of one type each, as W&B wants them: what is neither a number nor a truth value becomes text."""
    texts = [name for name in table if table[name].dtype.kind not in "biuf"]
    return table.reset_index(drop=True).astype(dict.fromkeys(texts, str)).rename(columns=str)


def runs_from_wandb(path: str, outputs: str | Path = "outputs", api: Any = None) -> Path:
    """Fetch the finished runs of ENTITY/PROJECT to `outputs`/wandb_<entity>_<project>, laid out as outputs/ is.

    Returns that folder. The latest run of a name counts; files that W&B no longer has are kept. ValueError where
    there is no such project or no run of igrad's in it. `api`: a wandb.Api.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        raise ValueError(f"a W&B project is named ENTITY/PROJECT, got '{path}'")
    api = api or server()
    folder = Path(outputs) / f"wandb_{path.replace('/', '_')}"
    num_runs = 0
    with asking():
        for run in api.runs(path, order="+created_at"):
            artifacts = [each for each in (*run.logged_artifacts(), *run.used_artifacts()) if each.type in FETCHED]
            for artifact in artifacts:
                artifact.download(root=str(folder))
            num_runs += any(artifact.type == "run" for artifact in artifacts)
    if not num_runs:
        raise ValueError(f"{path} holds no finished run that igrad has logged (tracking=wandb_online, or `wandb sync`)")
    return folder


def server() -> Any:
    """wandb.Api(), without a question on the terminal."""
    if not has_api_key():
        raise ValueError("W&B needs an API key and found none: run `wandb login` or set WANDB_API_KEY")
    import wandb

    with asking():
        return wandb.Api()


@contextmanager
def asking() -> Iterator[None]:
    """What goes wrong with the server is the user's to know, in one line; wandb's errors share no class."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"W&B: {one_line(error)}") from error


if __name__ == "__main__":
    sys.exit(main())
