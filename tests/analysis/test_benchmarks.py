"""Benchmarks as figures: their own code makes the samples, every number is drawn, a damaged file is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from analysis import benchmarks as drawing
from analysis import make_figures
from benchmarks import growth, selection, wire
from igrad.interfaces import View
from tests.analysis import legible
from tests.analysis.test_simulated_figures import document as win_document
from tests.analysis.test_simulated_figures import rows as measured_rows
from tests.test_bytes import GROWTH

NOISE = 1.02  # measured over predicted


@pytest.fixture(scope="module")
def documents() -> dict[str, dict]:
    """What each benchmark writes, with little to measure."""
    tiny = {"tiny": (32, 32), "small": (64, 32)}

    def counted(num_ranks: int, *_: int) -> dict[str, tuple[float, float]]:
        return {option: (1e6 * law(num_ranks),) * 2 for option, law in GROWTH.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "bytes_apart", counted)
        grown = growth.measure()
    coded = [
        row.measured(*[1e3 * NOISE * row.predicted_ratio] * 2, 1e3, rows[0].name)
        for rows in (wire.codec_rows(), wire.delay_rows())
        for row in rows
    ]
    timed = [
        selection.measure(claim, name, selection.noise([View("w", "0.q", "w", shape)]), 1)
        for name, shape in tiny.items()
        for claim in selection.CLAIMS
    ]
    return {
        "growth": {"rows": grown},
        "selection": {"rows": timed, "at_most": selection.MOST},
        "wire": {"rows": coded},
        "slow_network": {"rows": measured_rows()},
        "simulate": win_document() | {"rows": [{"method": "dense", "num_ranks": 2, "competes": True}]},
    }


@pytest.fixture(scope="module")
def folder(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "benchmarks"
    folder.mkdir()
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def drawn(folder):
    return drawing.draw(drawing.load(folder))


def test_every_benchmark_that_is_drawn_has_a_sample(documents, drawn):
    assert set(documents) == set(drawing.known()) == set(drawn)


def test_it_can_be_read_at_its_size_and_names_what_it_draws(drawn):
    for each in drawn.values():
        for name, figure in each.figures.items():
            legible.check(figure, name)
            legible.named(figure, name)


@pytest.mark.parametrize(
    ("name", "axis", "columns"),
    [("wire", "x", ["measured", "predicted"]), ("growth", "y", ["measured_growth", "predicted_growth"]),
     ("selection", "x", ["ratio"]), ("slow_network", "x", ["measured_ms"])],
)  # fmt: skip
def test_every_row_is_drawn(documents, drawn, name, axis, columns):
    found = []
    for axes in drawn[name].figures[name].axes:
        found += [value for line in axes.lines for value in getattr(line, f"get_{axis}data")()]
        found += [bar.get_width() for bar in axes.patches]
    for row in documents[name]["rows"]:
        for column in columns:
            assert np.isclose(found, row[column]).any(), f"{column} of {row}"
    assert len(drawn[name].table) == len(documents[name]["rows"])


def test_the_command_draws_what_there_is_and_says_what_else_there_could_be(folder, tmp_path, capsys):
    argv = ["benchmarks", "--runs", str(folder.parent), "--format", "svg", "--table", "md"]
    for out in ("a", "b"):
        assert make_figures.main([*argv, "--out", str(tmp_path / out)]) == 0
    names = sorted(path.name for path in (tmp_path / "a" / "benchmarks").glob("*.*"))
    figures = [*drawing.known(), "slow_network_predicted"]
    made = [*(f"{name}.md" for name in drawing.known()), *(f"{name}.svg" for name in figures)]
    assert names == sorted([make_figures.MADE, *made])
    for name in names:
        assert (tmp_path / "a/benchmarks" / name).read_bytes() == (tmp_path / "b/benchmarks" / name).read_bytes()
    (folder / "wire.json").rename(folder / "wire.txt")
    try:
        capsys.readouterr()
        assert make_figures.main([*argv, "--out", str(tmp_path / "a")]) == 0
        assert "  benchmarks  python -m benchmarks.wire\n" in capsys.readouterr().out
        assert not (tmp_path / "a" / "benchmarks" / "wire.svg").exists()
    finally:
        (folder / "wire.txt").rename(folder / "wire.json")


def test_a_damaged_file_is_named(tmp_path, capsys):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "wire.json").write_text("{")
    assert make_figures.main(["benchmarks", "--runs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "wire.json is damaged" in error and "repeat it with: python -m benchmarks.wire" in error
