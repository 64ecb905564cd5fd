"""Colours that stand in one panel stay apart for readers who lack a kind of cone; ticks have room and are there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from skimage.color import rgb2lab

from analysis import rq5, style
from tests.analysis import legible

# Linear RGB as seen without one kind of cone: Machado, Oliveira and Fernandes (2009), severity 1.
SEEN = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
NOTICEABLE = 2.3  # CIELAB distance: Mahy, Van Eycken and Oosterlinck (1994)
PANELS = {"palette": style.PALETTE, "phases": style.PHASE_COLORS.values(), **rq5.SHADES}


def seen(color: str, matrix: list[list[float]]) -> np.ndarray:
    """CIELAB of a colour as seen through the matrix."""
    value = np.array(to_rgb(color))
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    value = np.clip(np.array(matrix) @ linear, 0, 1)
    return rgb2lab(np.where(value <= 0.0031308, 12.92 * value, 1.055 * value ** (1 / 2.4) - 0.055))


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("name", PANELS)
def test_no_two_colours_of_a_panel_look_alike_to_the_colour_blind(name, kind):
    for a, b in itertools.combinations(PANELS[name], 2):
        distance = np.linalg.norm(seen(a, SEEN[kind]) - seen(b, SEEN[kind]))
        assert distance > 4 * NOTICEABLE, f"{a} and {b}: {distance:.1f}"


@settings(max_examples=25, deadline=None)
@given(st.floats(2, 9), st.floats(0.02, 6), st.booleans())
def test_bytes_have_ticks_that_do_not_touch_at_every_size_and_range(low, decades, log):
    figure, [axes] = style.panels(1, 1.0)
    axes.plot([10**low, 10 ** (low + decades)], [0, 1])
    axes.set_xscale("log" if log else "linear")
    axes.set_xlabel("bytes")
    style.bytes_axis(axes.xaxis, log)
    figure.get_layout_engine().set(rect=(0, 0, 0.75, 1))  # as where names stand beside the panel
    legible.check(figure, "bytes")
    left, right = axes.get_xlim()
    assert sum(left <= tick <= right for tick in axes.get_xticks()) >= 2
