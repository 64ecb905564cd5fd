"""Draw every figure and table from run directories: `python analysis/make_figures.py [rq3 ...]`."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml
from matplotlib.figure import Figure

import analysis
import rq
from analysis import benchmarks, printed, style
from igrad import results
from igrad.command_line import Parser, no_file_on_the_way, output_folder, words
from igrad.config import CONF, one_line

BENCHMARKS = "benchmarks"  # a study by this name: what benchmarks/*.py measured
MADE = ".made"  # in a study's folder: what the last call put there
SUFFIXES = {"latex": "tex", "csv": "csv", "md": "md"}


class Nothing(ValueError):
    """There is no run to draw; `commands` make them."""

    def __init__(self, commands: list[str]) -> None:
        self.commands = commands


class Part(NamedTuple):
    """What goes into one folder: a study, or one setting of it."""

    folder: str  # within the study's; "" = itself
    title: str
    incomplete: str | None
    tables: dict[str, pd.DataFrame]
    figures: dict[str, Figure]


def main(argv: list[str] | None = None) -> int:
    """0: drawn; 2: a mistake, or there is nothing to draw, which is said."""
    try:
        return draw(arguments(argv))
    except OSError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
    except ValueError as error:  # a list where commands are told
        print(f"error: {error}", file=sys.stderr)
    return 2


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(description="Figures and tables from run directories, offline.")
    parser.add_argument(
        "rqs", nargs="*", metavar="study",
        help="rq3, rq5_frontier, benchmarks, …, or rq3=mine: the runs of `study=mine`, drawn as RQ3's; default: all "
        "that have runs",
    )  # fmt: skip
    parser.add_argument("--runs", type=Path, default=Path("outputs"), help="folder of the runs (outputs)")
    parser.add_argument(
        "--out", type=Path,
        help="folder to write to (<runs>/figures); what a former call made of a study there goes",
    )  # fmt: skip
    parser.add_argument("--format", default="pdf,png", help="of figures: pdf, png, svg (pdf,png)")
    parser.add_argument("--table", default="latex,csv", help="of tables: latex, csv, md (latex,csv)")
    parser.add_argument("--partial", action="store_true", help="draw sweeps that are not finished, and say so on them")
    parser.add_argument(
        "--from-wandb",
        metavar="ENTITY/PROJECT",
        help="fetch the runs of a W&B project into <runs> first, and draw those",
    )
    parser.add_argument(
        "--to-wandb", nargs="?", const="igrad", metavar="PROJECT",
        help="log the tables to W&B as well (igrad); without an API key, offline",
    )  # fmt: skip
    told = parser.parse_args(argv)
    if told.to_wandb in studies():
        raise ValueError(f"--to-wandb takes a project, got the study '{told.to_wandb}'; name studies before it")
    told.format = words("--format", told.format, ("pdf", "png", "svg"))
    told.table = words("--table", told.table, SUFFIXES)
    if told.from_wandb:
        from igrad.track import runs_from_wandb

        told.runs = runs_from_wandb(told.from_wandb, told.runs)
    if not told.runs.is_dir():
        study = next((name for name in told.rqs if name in studies()), "rq3")
        raise ValueError(
            f"no folder '{told.runs}' with runs; to make some: {commands(study)[0]} (in outputs/; --runs names another)"
        )
    told.out = told.out or told.runs / "figures"
    no_file_on_the_way(told.out)  # before the minutes that figures may take
    return told


# ---------------------------------------------------------------------------------------------- which studies


def questions() -> list[str]:
    """The RQs there are: those with a module in rq/ and one in analysis/."""
    return [name for name in modules() if "_" not in name]


@functools.cache
def modules() -> list[str]:
    """What has a module in rq/ and one in analysis/: the questions, and studies drawn in a way of their own."""
    tables, figures = ({m.name for m in pkgutil.iter_modules(package.__path__)} for package in (rq, analysis))
    return sorted(name for name in tables & figures if re.fullmatch(r"rq\d+(_\w+)?", name))


@functools.cache
def studies() -> dict[str, list[Path]]:
    """The studies of these questions, and the files of conf/rq that fill each: rq5_frontier is one of rq5's."""
    files: dict[str, list[Path]] = {}
    for path in sorted((CONF / "rq").glob("*.yaml")):
        name = yaml.safe_load(path.read_text())["study"]
        if question(name) in modules():
            files.setdefault(name, []).append(path)
    return files


def question(study: str) -> str:
    """The module that draws it: its own where it has one."""
    return study if study in modules() else study.split("_")[0]


def commands(study: str) -> list[str]:
    """What makes a study's runs: in each of its files the first comment that is a command."""
    lines = [path.read_text().splitlines() for path in studies()[study]]
    told = [next(line.lstrip("# ") for line in each if line.startswith("# python")) for each in lines]
    return [re.split(r"\s{2,}", line.strip())[0] for line in told]  # what it takes stands apart


def named(told: str, runs: Path) -> tuple[str, str]:
    """(question, study) of what a user calls `rq3`, `rq5_frontier`, `rq3=mine`, or `mine` where its commands tell."""
    topic, given, study = told.partition("=")
    study = study or topic
    if study == BENCHMARKS or study in studies():
        return question(study), study
    known = modules() if given else list(studies())
    if given and topic not in modules():
        raise ValueError(f"unknown question '{topic}'; known: {', '.join(known)}")
    found = topic if given else swept(study, runs)
    if not (runs / study).is_dir():
        also = f" in {runs}" if found else f"; known: {', '.join(known)}"
        raise ValueError(f"{'no' if found else 'unknown'} study '{study}'{also}")
    if not found:
        raise ValueError(f"'{study}' is no question's study; say whose figures it gets: {known[0]}={study}, …")
    return found, study


def swept(study: str, runs: Path) -> str | None:
    """Whose study it is: by its name, as `rq3_wide`, or by `+rq=rq3` in the commands of its sweeps."""
    if question(study) in modules():
        return question(study)
    of = {path.stem: question(name) for name, paths in studies().items() for path in paths}
    lines = [json.loads(path.read_text())["command"] for path in (runs / study).glob("sweeps/*.json")]
    topics = {of.get(name) for line in lines for name in re.findall(r"\+rq=(\w+)", line)}
    return topics.pop() if len(topics) == 1 else None


def asked(told: argparse.Namespace) -> list[tuple[str, str]]:
    """(question, study) each: those named, or all that a question has, the user's own included."""
    if told.rqs:
        return [named(name, told.runs) for name in told.rqs]
    own = {path.parent.name for path in told.runs.glob("*/sweeps")} - {*studies()}
    topics = {name: question(name) for name in studies()} | {name: swept(name, told.runs) for name in sorted(own)}
    return [(topic, name) for name, topic in topics.items() if topic] + [(BENCHMARKS, BENCHMARKS)]


# ---------------------------------------------------------------------------------------------------- drawing


def draw(told: argparse.Namespace) -> int:
    drawn, problems = 0, []
    without: dict[str, list[str]] = {}
    for topic, name in asked(told):
        try:
            parts = measured(told) if topic == BENCHMARKS else answered(topic, name, told)
            tables = write(name, parts, told)
            if told.to_wandb:
                print(f"  {logged(name, tables, told)}")
        except Nothing as nothing:
            without[name] = nothing.commands
            continue
        except ValueError as error:
            problems.append(str(error))
            continue
        drawn += 1
    said = [*problems, *listed(without, told.runs)]
    if said and (told.rqs or not drawn):
        raise ValueError("\n".join(said))
    print(*said, sep="\n", end="\n" if said else "")
    return 0


def listed(without: dict[str, list[str]], runs: Path) -> list[str]:
    """One line per study that has no runs, with its command; those that several commands fill have a line for each."""
    width = max(map(len, without), default=0)
    pairs = [pair for name, lines in without.items() for pair in zip_longest([name], lines, fillvalue="")]
    heading = [f"no runs yet in {runs}; to make them:"] if pairs else []
    return heading + [f"  {name:{width}}  {line}" for name, line in pairs]


def answered(topic: str, name: str, told: argparse.Namespace) -> Iterator[Part]:
    """The parts of a study: a folder per setting where its runs are of several."""
    whole = results.load(name, told.runs)
    if whole.runs.empty and whole.sweeps.empty:
        if name not in studies():
            raise ValueError(f"{name} has no runs in {told.runs}")
        raise Nothing(commands(name))
    if whole.runs.empty:
        raise ValueError(f"{name} has no finished run; {whole.unfinished()}")
    study = whole.partial() if told.partial else whole.complete()
    tables, figures = (importlib.import_module(f"{package}.{topic}") for package in ("rq", "analysis"))
    for label, setting in study.settings(tables.AXES).items():
        title = ", ".join(filter(None, [label, f"{len(setting.runs)} runs", setting.incomplete]))
        folder = re.sub(r"[^\w.,=+-]+", "_", label)
        yield Part(folder, title, setting.incomplete, tables.tables(setting), figures.figures(setting))
    if whole.unfinished() and not told.partial:
        print(f"left out (--partial draws what there is): {whole.unfinished()}")


def measured(told: argparse.Namespace) -> Iterator[Part]:
    """What benchmarks there are."""
    found = benchmarks.load(told.runs / BENCHMARKS)
    if not found:
        raise Nothing([benchmarks.command(name) for name in benchmarks.known()])
    drawn = benchmarks.draw(found)
    figures = {name: figure for each in drawn.values() for name, figure in each.figures.items()}
    yield Part("", ", ".join(found), None, {name: each.table for name, each in drawn.items()}, figures)
    missing = [benchmarks.command(name) for name in benchmarks.known() if name not in found]
    print(*listed({BENCHMARKS: missing} if missing else {}, told.runs), sep="\n", end="\n" if missing else "")


def write(name: str, parts: Iterator[Part], told: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """Every table and figure of one study; what the last call put there and this one does not goes. The tables."""
    home, written, tables = told.out / name, [], {}
    for part in parts:
        folder = output_folder(home / part.folder)
        print(f"{name}: {part.title}")
        for title, table in part.tables.items():
            table = tables[f"{part.folder}/{title}".lstrip("/")] = with_note(table, part.incomplete)
            written += write_table(table, folder / title, told.table)
        for title, figure in part.figures.items():
            if part.incomplete:
                style.mark(figure, part.incomplete)
            written += style.save(figure, folder / title, told.format)
        print(*(f"  {path}" for path in written if path.parent == folder), sep="\n")
    tidy(home, [str(path.relative_to(home)) for path in written])
    return tables


def with_note(table: pd.DataFrame, incomplete: str | None) -> pd.DataFrame:
    """The table, what is incomplete added to its note."""
    if incomplete is None:
        return table
    return table.assign(note=table["note"] + f"; {incomplete}" if "note" in table else incomplete)


def write_table(table: pd.DataFrame, path: Path, kinds: list[str]) -> list[Path]:
    """A table in each kind. Its note stands below it; in a csv, in a column."""
    written = []
    for kind in kinds:
        written.append(path.with_name(f"{path.name}.{SUFFIXES[kind]}"))
        if kind == "csv":
            table.to_csv(written[-1], index=False, float_format="%.8g")
        else:
            written[-1].write_text(printed.booktabs(table) if kind == "latex" else printed.markdown(table))
    return written


def logged(name: str, tables: dict[str, pd.DataFrame], told: argparse.Namespace) -> str:
    """Log a study's tables to W&B; where they are now."""
    from igrad.track import has_api_key, log_tables  # takes seconds

    return log_tables(name, tables, told.to_wandb, "online" if has_api_key() else "offline", told.runs)


def tidy(home: Path, made: list[str]) -> None:
    """Take away what the last call made here and this one did not; nobody else's files."""
    told = home / MADE
    before = told.read_text().splitlines() if told.exists() else []
    for name in {*before} - {*made}:
        (home / name).unlink(missing_ok=True)
        folder = (home / name).parent
        if folder != home and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    told.write_text("\n".join(sorted(made)))


if __name__ == "__main__":
    sys.exit(main())
