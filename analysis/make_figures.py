"""Draw every figure and table from run directories: `python analysis/make_figures.py [rq3 ...]`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from typing import NoReturn

import yaml

import analysis
import rq
from analysis import printed, style
from igrad import results
from igrad.results import CONF, Study


def main(argv: list[str] | None = None) -> int:
    """0: drawn; 2: a mistake, or there is nothing to draw. One line says which."""
    try:
        return draw(arguments(argv))
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see --help")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(description="Figures and tables from run directories, offline.")
    parser.add_argument("rqs", nargs="*", metavar="study", help="rq3, rq5_frontier, …; default: all that have runs")
    parser.add_argument("--runs", type=Path, default=Path("outputs"), help="folder of the runs (outputs)")
    parser.add_argument("--out", type=Path, help="folder to write to (<runs>/figures)")
    parser.add_argument("--format", default="pdf,png", help="of figures: pdf, png, svg (pdf,png)")
    parser.add_argument("--table", default="latex,csv", help="of tables: latex, csv (latex,csv)")
    parser.add_argument("--partial", action="store_true", help="draw sweeps that are not finished, and say so on them")
    told = parser.parse_args(argv)
    told.format = chosen("--format", told.format, ("pdf", "png", "svg"))
    told.table = chosen("--table", told.table, ("latex", "csv"))
    told.out = told.out or told.runs / "figures"
    return told


def chosen(flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    words = [word for word in text.split(",") if word]
    wrong = [word for word in words if word not in known]
    if wrong or not words:
        raise ValueError(f"{flag} must be of {', '.join(known)}, got '{wrong[0] if wrong else text}'")
    return words


def questions() -> list[str]:
    """The RQs there are: those with a module in rq/ and one in analysis/."""
    tables, figures = ({m.name for m in pkgutil.iter_modules(package.__path__)} for package in (rq, analysis))
    return sorted(name for name in tables & figures if re.fullmatch(r"rq\d+", name))


def studies() -> dict[str, list[Path]]:
    """The studies of these questions, and the files of conf/rq that fill each: rq5_frontier is one of rq5's."""
    files: dict[str, list[Path]] = {}
    for path in sorted((CONF / "rq").glob("*.yaml")):
        name = yaml.safe_load(path.read_text())["study"]
        if question(name) in questions():
            files.setdefault(name, []).append(path)
    return files


def question(study: str) -> str:
    return study.split("_")[0]


def command(study: str) -> str:
    """The commands that make a study's runs: in each of its files the first comment that is one."""
    lines = [path.read_text().splitlines() for path in studies()[study]]
    return "; ".join(next(line.lstrip("# ").strip() for line in each if line.startswith("# python")) for each in lines)


def draw(told: argparse.Namespace) -> int:
    known = list(studies())
    for name in told.rqs:
        if name not in known:
            raise ValueError(f"unknown study '{name}'; known: {', '.join(known)}")
    if not told.runs.is_dir():
        raise ValueError(f"no folder '{told.runs}'; --runs names the one that run.py wrote (outputs)")
    drawn, problems = 0, []
    for name in told.rqs or known:
        study = results.load(name, told.runs)
        try:
            if study.runs.empty and study.sweeps.empty:
                raise ValueError(f"{name} has no runs in {told.runs}; make them with: {command(name)}")
            if study.runs.empty:
                raise ValueError(f"{name} has no finished run; {study.unfinished()}")
            write(study.partial() if told.partial else study.complete(), told)
        except ValueError as error:
            problems.append(str(error))
            continue
        drawn += 1
        if study.unfinished() and not told.partial:
            print(f"left out (--partial draws what there is): {study.unfinished()}")
    if (told.rqs and problems) or not drawn:
        raise ValueError("; ".join(problems))
    for problem in problems:
        print(problem)
    return 0


def write(study: Study, told: argparse.Namespace) -> None:
    """Every table and figure of one study; a folder per setting where its runs are of several."""
    tables, figures = (importlib.import_module(f"{package}.{question(study.name)}") for package in ("rq", "analysis"))
    for label, setting in study.settings(tables.AXES).items():
        folder = told.out / study.name / re.sub(r"[^\w.,=+-]+", "_", label)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{study.name}: {', '.join(filter(None, [label, f'{len(setting.runs)} runs', setting.incomplete]))}")
        for name, table in tables.tables(setting).items():
            if setting.incomplete:
                told_already = table["note"] + "; " if "note" in table else ""
                table = table.assign(note=told_already + setting.incomplete)
            if "csv" in told.table:
                table.to_csv(folder / f"{name}.csv", index=False, float_format="%.8g")
                print(f"  {folder / name}.csv")
            if "latex" in told.table:
                (folder / f"{name}.tex").write_text(printed.booktabs(table))
                print(f"  {folder / name}.tex")
        for name, figure in figures.figures(setting).items():
            if setting.incomplete:
                style.mark(figure, setting.incomplete)
            for path in style.save(figure, folder / name, told.format):
                print(f"  {path}")


if __name__ == "__main__":
    sys.exit(main())
