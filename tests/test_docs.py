"""What README and docs/ name is there: files, commands that compose, targets of make; the reference is up to date."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from igrad import compose, config_reference
from igrad.config import GROUPS, check
from tests.sweeps import thin

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
CODE = re.compile(r"```\w*\n(.*?)```|`([^`]+)`|^((?: {4}[^\n]*\n)+)", re.S | re.M)
TESTED_ELSEWHERE = re.compile(r".*--help|\+(rq|method)=\w+|sparsifier=rows .*")  # launch, conf_tree, readme


def code(page: Path) -> list[str]:
    """Every line of code of a page; a span in a sentence may go over several lines of text."""
    lines = []
    for fenced, span, indented in CODE.findall(page.read_text()):
        lines += (fenced or indented).splitlines() if not span else [" ".join(span.split())]
    return lines


def commands(page: Path, program: str) -> list[str]:
    """What follows a program in a page's code, up to a comment or the next command; what is cut short by … left out."""
    found = [text for line in code(page) for text in re.findall(rf"{program}([^#;&`\n]*)", line.split("  #")[0])]
    return [text.split("   ")[0].strip() for text in found if "…" not in text and "<" not in text]


RUNS = sorted({command for page in PAGES for command in commands(page, r"python run\.py")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name}: {target}"
        headings = re.findall(r"^#+ (.+)$", there.read_text(), re.M) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{page.name}: {target}"


@pytest.mark.parametrize("command", [command for command in RUNS if not TESTED_ELSEWHERE.fullmatch(command)])
def test_every_run_that_is_named_composes(command, monkeypatch):
    """Of a sweep the points in which a value of the command line comes first; axes of rq files are tested with them."""
    argv = shlex.split(command)
    thin(monkeypatch, tuple(f"{argument.split('=')[0]}=" for argument in argv))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    points = compose.points(argv)
    assert points
    for point in points:
        check(point.cfg)


def test_runs_are_found_in_sentences_and_blocks():
    assert {"", "+rq=rq4", "+rq=rq3 release_period=4,8,16 -m", "value_codec=bf16,int8 index_codec=gap8 -m"} <= set(RUNS)


def test_every_other_command_that_is_named_is_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for told in commands(page, r"(?:^|\s)make "):
            assert set(told.split()) <= targets, f"{page.name}: make {told}"
        for told in commands(page, r"python -m "):
            module = ROOT / told.split()[0].replace(".", "/")
            assert module.with_suffix(".py").is_file() or module.is_dir(), f"{page.name}: python -m {told}"
        for told in commands(page, r"python (?=\w+/)") + commands(page, "pytest "):
            for word in told.split():
                path = ROOT / word.split("::")[0]
                assert path.suffix != ".py" or path.is_file() or path.stem == "test_rows", f"{page.name}: {told}"


# -------------------------------------------------------------------------------------------- the reference


def test_the_reference_is_what_the_comments_say():
    assert (ROOT / "docs" / "configuration.md").read_text() == config_reference.page(), "run `make docs`"


def test_every_knob_is_explained_in_a_few_words_and_in_full():
    for knob in config_reference.knobs():
        assert knob.comment, f"conf/config.yaml says nothing of {knob.name}"
        assert len(config_reference.brief(knob)) <= 32 or knob.name == "method", knob.name


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_and_key_is_explained(group):
    for option in config_reference.options([ROOT / "conf"])[group]:
        assert config_reference.summary(group, option), f"{group}={option}"
        for key, _, told in config_reference.option_keys(group, option):
            assert told, f"{group}.{key} of {group}={option}"


def test_comments_are_read_with_their_keys():
    text = '# head\na: 1 # one; two\nb:\n  c: "x # y" # not in the text\nd: [1, 2]\nhydra:\n  mode: X\n'
    assert [tuple(key) for key in config_reference.keys(text)] == [
        ("a", "1", "one; two"),
        ("b", "", ""),
        ("b.c", '"x # y"', "not in the text"),
        ("d", "[1, 2]", ""),
    ]
