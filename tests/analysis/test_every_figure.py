"""What holds for every figure of every study and benchmark: a new one is held to it by existing."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from analysis import make_figures, style
from tests.analysis import legible, planted

LOSS, BYTES = 0.75, 3.0  # added to every loss, times all bytes


def test_every_study_has_a_sample():
    assert set(planted.TRUTHS) == set(make_figures.studies())


@pytest.mark.parametrize("name", planted.TRUTHS)
def test_it_can_be_read_at_its_size_and_names_what_it_draws(library, name):
    figures = library.figures(name)
    assert figures
    for title, figure in figures.items():
        style.mark(figure, "incomplete: 50 of 51 runs")
        legible.check(figure, f"{name}: {title}")
        legible.named(figure, f"{name}: {title}")


@pytest.mark.parametrize("name", planted.TRUTHS)
def test_what_is_drawn_follows_the_runs_and_not_their_order(library, name):
    """With all losses higher, all bytes more and the runs shuffled, only axes of loss and bytes move, as much."""
    study = library.study(name)
    module = importlib.import_module(f"analysis.{make_figures.question(name)}")
    moved = {part: changed(getattr(study, part)) for part in ("runs", "curves")}
    after = module.figures(dataclasses.replace(study, **moved))
    for title, before in library.figures(name).items():
        for mine, theirs in zip(legible.panels(before), legible.panels(after[title]), strict=True):
            old, new = drawn(mine), drawn(theirs)
            assert old and len(old) == len(new), f"{name}: {title}"
            for (a, in_data), (b, _) in zip(old, new, strict=True):
                for axis, which in enumerate("xy"):
                    expected = moved_on(legible.label_of(mine, which), a[:, axis]) if in_data[axis] else a[:, axis]
                    assert b[:, axis] == pytest.approx(expected, nan_ok=True), f"{name}: {title}, {which}"


def changed(frame):
    frame = frame.sample(frac=1, random_state=0)
    losses = [column for column in frame if column.endswith("val_loss")]
    sizes = [column for column in frame if column.endswith("wire_bytes") or column == "payload_bytes"]
    frame[losses], frame[sizes] = frame[losses] + LOSS, frame[sizes] * BYTES
    return frame


def moved_on(label: str, values: np.ndarray) -> np.ndarray:
    if label.startswith("validation loss"):
        return values + LOSS
    return values * BYTES if "bytes per rank" in label else values


def drawn(axes: Axes) -> list[tuple[np.ndarray, tuple[bool, bool]]]:
    """Points [n, 2] of every line, bar and image of a panel, and whether each coordinate is one of data."""
    found = []
    for line in axes.lines:
        points = np.asarray(line.get_xydata(), dtype=float)
        found.append((points, line.get_transform().contains_branch_seperately(axes.transData)))
    for bar in (patch for patch in axes.patches if isinstance(patch, Rectangle)):
        found.append((bar.get_bbox().get_points(), (True, True)))
    for collection in axes.collections:  # bands and error bars
        found.append((np.concatenate([path.vertices for path in collection.get_paths()]), (True, True)))
    for image in axes.get_images():
        values = np.asarray(image.get_array(), dtype=float).reshape(-1, 1)
        found.append((np.hstack([values, values]), (False, False)))
    return found
