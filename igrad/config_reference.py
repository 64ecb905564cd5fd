"""What can be configured, in words: `run.py --help`, and docs/configuration.md by `python -m igrad.config_reference`.

Nothing is written twice. A knob is explained by the comment behind it in conf/config.yaml, whose words up to the first
semicolon are its help; a key of an option by the comment behind the field of its class, and by the comment in the yaml
where that says something about the value; an option by the yaml's first comment, else by the first line of its module.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from igrad.config import CONF, DELTAS, GROUPS

WIDTH = 120  # columns of the help

HELP = """\
python run.py [group=option ...] [knob=value ...] [-m]            -m: every combination of the values a,b,c

Groups, with a star at the default
{groups}

Knobs, as they stand in conf/config.yaml
{knobs}

Examples
  python run.py sparsifier=adtopk density=0.01 release_period=8
  python run.py threshold=knee,all seed=42,43,44 study=mine -m
  python run.py +method=ig_adtopk release_period=8               a method is a delta, as rq and scale are: with a plus
  python run.py +rq=rq3 +scale=paper --cfg job                   prints the configuration and runs nothing
Runs go to outputs/<study>/, finished ones are not run again. Every key in full: docs/configuration.md
"""

PAGE = """\
# Configuration

Written by `make docs` from the comments in `conf/` and `igrad/`; do not edit it here. A knob is set with `knob=value`,
an option chosen with `group=option`, a key of the chosen option set with `group.key=value`. `${{x}}` stands for the
value of the knob or group x. How they work together is in [method.md](method.md).

## Knobs

{knobs}

{groups}"""


class Key(NamedTuple):
    """A key of a yaml: its dotted name, its value as written, the comment behind it."""

    name: str
    value: str
    comment: str


# ------------------------------------------------------------------------------------------- reading


def keys(text: str, skip: Sequence[str] = ("defaults", "hydra")) -> Iterator[Key]:
    """The keys of a yaml in their order, nested ones dotted; those in `skip` left out."""
    lines = text.splitlines()

    def walk(node: yaml.MappingNode, prefix: str) -> Iterator[Key]:
        for key, value in node.value:
            name = prefix + key.value
            if name in skip:
                continue
            nested = isinstance(value, yaml.MappingNode) and not value.flow_style
            end = key.end_mark if nested else value.end_mark
            comment = lines[end.line][end.column :].partition("# ")[2]
            if nested:
                yield Key(name, "", comment)
                yield from walk(value, f"{name}.")
            else:
                yield Key(name, text[value.start_mark.index : end.index], comment)

    node = yaml.compose(text)
    if isinstance(node, yaml.MappingNode):
        yield from walk(node, "")


def knobs() -> list[Key]:
    """Those of conf/config.yaml that have a value of their own."""
    return [key for key in keys((CONF / "config.yaml").read_text()) if key.value]


def brief(knob: Key) -> str:
    """A knob in a few words."""
    return knob.comment.split(";")[0]


def chosen() -> dict[str, str]:
    """Group -> default option."""
    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    return {group: option for each in defaults if isinstance(each, dict) for group, option in each.items()
            if group in GROUPS}  # fmt: skip


def options(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Group -> options, of several trees laid out as conf/ is."""
    return {
        group: sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
        for group in (*GROUPS, *DELTAS)
    }


def head(text: str) -> list[str]:
    """The comments before a yaml's first key, without Hydra's own."""
    lines = [line[2:] for line in re.match(r"(#.*\n)*", text)[0].splitlines()]
    return [line for line in lines if not line.startswith("@")]


def target(group: str, text: str) -> tuple[str, str]:
    """(module, class) of an option; those of the option that it extends where it names none."""
    content = yaml.safe_load(text)
    if "_target_" not in content:
        return target(group, (CONF / group / f"{content['defaults'][0]}.yaml").read_text())
    module, _, name = content["_target_"].rpartition(".")
    return module, name


def summary(group: str, option: str) -> str:
    """An option in one line; what it sets of the option that it extends."""
    text = (CONF / group / f"{option}.yaml").read_text()
    words = [line for line in head(text) if not line.startswith("python ")]
    if not words and group in GROUPS:
        module, _ = target(group, text)
        words = [inspect.getdoc(importlib.import_module(module)).splitlines()[0].removesuffix(".")]
    content = yaml.safe_load(text)
    if group in GROUPS and "_target_" not in content:
        told = ", ".join(f"{key.name}={key.value}" for key in keys(text))
        words.append(f"(`{content['defaults'][0]}` with `{told}`)")
    return " ".join(words)


def command(group: str, option: str) -> str:
    """The first command in the comment of a delta's yaml, else what chooses it."""
    commands = [line for line in head((CONF / group / f"{option}.yaml").read_text()) if line.startswith("python ")]
    return re.split(r"  +", commands[0])[0] if commands else f"python run.py +{group}={option}"


def field_comments(module: str, name: str) -> dict[str, str]:
    """Field -> the comment behind it, or before it where it has a line of its own."""
    found, before = {}, ""
    for line in inspect.getsource(getattr(importlib.import_module(module), name)).splitlines():
        if match := re.match(r" {4}(\w+): [^#]*(?:# (.*))?$", line):
            found[match[1]] = match[2] or before
        before = match[1] if (match := re.match(r" {4}# (.*)$", line)) else ""
    return found


# ------------------------------------------------------------------------------------------- writing


def help_text(folders: Sequence[Path] = ()) -> str:
    """Groups, knobs and examples on one screen; `folders` are further trees of options (--config-dir)."""
    found = options([CONF, *folders])
    default = chosen()
    lines = []
    for group, names in found.items():
        marked = [f"{name}*" if name == default.get(group) else name for name in names]
        first = f"  {'+' if group in DELTAS else ''}{group}: "
        lines += textwrap.wrap(", ".join(marked), WIDTH, initial_indent=first, subsequent_indent=" " * 6,
                               break_on_hyphens=False)  # fmt: skip
    told = [(f"{key.name}={key.value.replace(' ', '')}", brief(key)) for key in knobs() if key.name not in DELTAS]
    cells = [f"  {setting:<27} {words}" for setting, words in told]
    half = (len(cells) + 1) // 2
    pairs = itertools.zip_longest(cells[:half], cells[half:], fillvalue="")
    rows = [f"{left:<{WIDTH // 2}}{right}".rstrip() for left, right in pairs]
    return HELP.format(groups="\n".join(lines), knobs="\n".join(rows))


def table(rows: list[list[str]], *columns: str) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    every = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in every)


def option_keys(group: str, option: str) -> Iterator[tuple[str, str, str]]:
    """(key, value, explanation) of an option with a class of its own."""
    text = (CONF / group / f"{option}.yaml").read_text()
    if "_target_" not in yaml.safe_load(text):
        return
    module, name = target(group, text)
    comments = field_comments(module, name) if module.startswith("igrad.") else {}
    for key in keys(text, ("_target_", "_partial_")):
        if key.name.endswith("._target_"):
            continue
        told, remark = comments.get(key.name, ""), key.comment
        if key.value == f"${{{key.name}}}" and key.name in GROUPS:
            told = told or f"the option of group {key.name}"
        if told and remark:
            told = f"{told} ({remark})"
        yield key.name, key.value, told or remark


def group_section(group: str, names: list[str]) -> str:
    """A group's options and their keys; a delta's options and their commands."""
    if group in DELTAS:
        rows = [[f"`{name}`", summary(group, name), f"`{command(group, name)}`"] for name in names]
        return f"## {group}\n\n{table(rows, f'`+{group}=`', 'what it is', 'command')}\n"
    default = chosen()[group]
    listed = [[f"`{name}`" + (" (default)" if name == default else ""), summary(group, name)] for name in names]
    parts = [f"## {group}", table(listed, f"`{group}=`", "what it is")]
    having: dict[tuple[str, str, str], list[str]] = {}  # a row that several options share is one
    for name in names:
        for row in option_keys(group, name):
            having.setdefault(row, []).append(name)
    if having:
        rows = [[f"`{group}.{key}`", ", ".join(of), f"`{value}`" if value else "", told]
                for (key, value, told), of in having.items()]  # fmt: skip
        parts.append(table(rows, "key", "of", "value", "what it does"))
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """docs/configuration.md."""
    rows = [[f"`{key.name}`", f"`{key.value}`", key.comment] for key in knobs()]
    groups = "\n".join(group_section(group, names) for group, names in options([CONF]).items())
    return PAGE.format(knobs=table(rows, "knob", "default", "what it is"), groups=groups)


if __name__ == "__main__":
    sys.stdout.write(page())
