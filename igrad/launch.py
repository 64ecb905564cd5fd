"""Check every point of a sweep, then run one after the other; a failed point does not stop the rest."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from igrad import compose
from igrad.compose import Point
from igrad.config import build, check, config_hash, one_line
from igrad.config_reference import help_text
from igrad.files import read_summary, write_whole
from igrad.progress import Progress, counted
from igrad.ranks import Interrupted, RankError, handle_signals, run_ranks, start_forkserver, stop_forkserver

if TYPE_CHECKING:
    from igrad.data import Inputs

# By overrides: what was checked is what runs, even if a yaml is edited while earlier points run. A launcher plugin's
# other processes find this empty; they take Hydra's config and prepare again, from the cache.
planned: dict[tuple[str, ...], tuple[DictConfig, Inputs]] = {}
progress = Progress()


def main(task: Callable[[], None], argv: list[str]) -> int:
    """The command line: 0 all finished, 1 some point failed, 2 a mistake and nothing was started, 128 + signal."""
    handle_signals()
    command = shlex.join(["python", "run.py", *argv])
    try:
        args = compose.parse(argv)
        if args.help:
            print(help_text([Path(args.config_dir)] if args.config_dir else []), end="")
            return 0
        if args.hydra_help or args.shell_completion or args.info or args.cfg:
            if args.cfg:
                compose.points(argv)
            task()
            return 0
        start_forkserver()
        sweep = plan(argv)
        try:
            write_manifests(sweep, command, args.overrides)
        except OSError as error:
            raise ValueError(f"cannot write to {error.filename}: {error.strerror}; free it or run elsewhere") from error
    except ValueError as error:
        stop_forkserver()
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupted as signal:
        stop_forkserver()
        print("\ninterrupted before the first run started", file=sys.stderr)
        return 128 + signal.signum
    waiting = [p for p in sweep if p.cfg.rerun or status(p.directory, config_hash(p.cfg)) != "finished"]
    progress.start(len(sweep), len(waiting))
    try:
        task()
    except Interrupted as signal:
        print(f"\ninterrupted: finished runs are kept; go on with: {resumed(command)}", file=sys.stderr)
        return 128 + signal.signum
    finally:
        stop_forkserver()
    return report(sweep)


def plan(argv: list[str]) -> list[Point]:
    """Every point, checked and with its model and windows made. ValueError in one line."""
    sweep = compose.points(argv)
    for point in sweep:
        check(point.cfg)
        build(point.cfg.cluster).device_type(point.cfg.num_processes)

    from igrad import data, profile  # import what reads models and texts

    for point in sweep:
        inputs = data.prepare(point.cfg)
        profile.check(point.cfg, inputs)
        planned[tuple(point.overrides)] = (point.cfg, inputs)
    return sweep


def write_manifests(sweep: list[Point], command: str, overrides: list[str]) -> None:
    """One manifest per study: which points belong to this sweep."""
    for study in dict.fromkeys(point.cfg.study for point in sweep):
        unique = {config_hash(p.cfg): p for p in sweep if p.cfg.study == study}
        path, content = compose.manifest(study, command, overrides, list(unique.values()))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


def run_point(cfg: DictConfig) -> None:
    """One point: skip it when it is finished, else profile on demand and run its ranks.

    Failure is told in summary.json, never raised: it must not stop the sweep.
    """
    overrides = list(HydraConfig.get().overrides.task)
    cfg, inputs = planned.get(tuple(overrides), (cfg, None))
    directory = compose.run_directory(cfg, overrides)
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory.with_name(f".{directory.name}.lock"), timeout=0):
            run_unlocked(cfg, directory, inputs)
    except Timeout:
        print(progress.line(f"{directory}: another process is running it", runs=False), flush=True)
    except OSError as error:  # told again in the report
        print(f"{directory}: {error.strerror}", file=sys.stderr, flush=True)


def run_unlocked(cfg: DictConfig, directory: Path, inputs: Inputs | None) -> None:
    """One point whose directory is nobody else's now."""
    key = config_hash(cfg)
    if cfg.rerun:
        shutil.rmtree(directory, ignore_errors=True)
    elif status(directory, key) == "finished":
        print(progress.line(f"{directory}: already finished; rerun=true runs it again", runs=False), flush=True)
        return
    print(progress.line(str(directory)), flush=True)
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    failed(directory, key, "did not end: still running, or killed from outside")
    try:
        from igrad import data, profile

        inputs = inputs or data.prepare(cfg)
        inputs = replace(inputs, profile=profile.resolve(cfg, inputs, run_ranks))
        run_ranks(cfg, directory, inputs)
        if status(directory, key) != "finished":
            raise RankError("the ranks ended without a summary", directory)
    except Interrupted as signal:
        failed(directory, key, f"interrupted by {signal}")
        raise
    except RankError as error:
        failed(directory, key, str(error) if error.directory == directory else f"profiling: {error}", error.directory)
    except Exception as error:
        logs = directory / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "launcher.log").open("a") as file:
            traceback.print_exception(error, file=file)
        failed(directory, key, f"{type(error).__name__}: {one_line(error)}")
    progress.ran(time.monotonic() - started)


def status(directory: Path, key: str) -> str | None:
    """`finished`, `failed`, or None where this config was never run here."""
    summary = read_summary(directory)
    return summary.get("status") if summary.get("config_hash") == key else None


def failed(directory: Path, key: str, error: str, where: Path | None = None) -> None:
    """A summary of failure; `where` is the run directory that holds the logs."""
    logs = str((where or directory) / "logs")
    write_json(directory / "summary.json", {"status": "failed", "error": error, "logs": logs, "config_hash": key})


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, lambda file: file.write_text(json.dumps(content, indent=2) + "\n"))


def report(sweep: list[Point]) -> int:
    """Say what came of the sweep and what to do next; the exit code."""
    runs = {point.directory: point for point in sweep}
    summaries = {d: read_summary(d) for d, point in runs.items() if status(d, config_hash(point.cfg)) != "finished"}
    for directory, summary in summaries.items():
        error, logs = summary.get("error", "never started"), summary.get("logs", directory)
        print(f"failed: {directory.name}: {error} (see {logs})", file=sys.stderr)
    if summaries:
        return 1
    for study in dict.fromkeys(point.cfg.study for point in sweep):
        of = {directory: point for directory, point in runs.items() if point.cfg.study == study}
        print(f"{counted(len(of), 'run')} finished in {compose.OUTPUTS / study}")
        for line in what_next(study, of):
            print(f"next: {line}")
    return 0


def what_next(study: str, runs: dict[Path, Point]) -> list[str]:
    """What shows a study's results: figures, or for one of one's own the table, the files and W&B; and TensorBoard."""
    first, *others = runs
    place, board = compose.OUTPUTS / study, []
    if any((directory / "tensorboard").is_dir() for directory in runs):
        board = [f"tensorboard --logdir {place if others else first}"]
    told = [word.removeprefix("+rq=") for point in runs.values() for word in point.overrides if word.startswith("+rq=")]
    if is_drawn(study) or (told and is_drawn(told[0])):
        return [f"python analysis/make_figures.py {study}", *board]
    lines = [f"{first}/summary.json (final numbers) and metrics.jsonl (a row per window)"]
    if others:
        lines = [f"python -c \"from igrad import results; print(results.load('{study}').table())\"  # a row per run"]
    if any(path for directory in runs for path in directory.glob("wandb/offline-run-*")):
        lines.append(f"wandb sync {place / '*' if others else first}/wandb/offline-run-*  # uploads")
    return [*lines, *board]


def is_drawn(study: str) -> bool:
    """Whether analysis/make_figures.py has figures for it: rq3, rq5_frontier, rq3_mine."""
    question = study.split("_")[0]
    return bool(re.fullmatch(r"rq\d+", question)) and (compose.CONF.parent / "analysis" / f"{question}.py").is_file()


def resumed(command: str) -> str:
    """The command that goes on after an interruption; repeating `rerun=true` would start over."""
    return re.sub(r" rerun=\w+", "", command)
