"""Printed cells."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from analysis import printed


def test_mean_and_sd_share_a_cell_and_its_decimals():
    frame = pd.DataFrame({"r": [1, 2], "val_loss": [4.50621, -0.5], "val_loss_sd": [0.0240, 0.31], "run": ["a", "b"]})
    headings, cells = printed.columns(frame)
    assert headings == ["r", "val. loss"]
    assert cells == [["1", "2"], ["4.506 ± 0.024", "−0.500 ± 0.310"]]


@pytest.mark.parametrize("sd", [math.nan, 0.0, 1e-12])
def test_an_sd_that_would_read_zero_is_not_printed(sd):
    _, [cells] = printed.columns(pd.DataFrame({"x": [1.5], "x_sd": [sd]}))
    assert cells == ["1.500"]


def test_bytes_are_in_readable_units_and_accuracy_in_percent():
    headings, cells = printed.columns(pd.DataFrame({"wire_bytes": [68_184.0, 45_522.0], "val_accuracy": [0.158, 0.16]}))
    assert headings == ["wire/step (kB)", "acc. (%)"]
    assert cells == [["68.18", "45.52"], ["15.80", "16.00"]]


def test_what_is_not_known_is_a_dash_and_text_is_escaped():
    tex = printed.booktabs(pd.DataFrame({"x": [math.nan, 1.5], "kind": ["a_b", "50%"]}))
    assert "-- & a\\_b" in tex and "1.500 & 50\\%" in tex


def test_a_flag_is_a_word_and_tex_is_ascii():
    tex = printed.booktabs(pd.DataFrame({"control": [True, False], "tau_difference": [0.1, 0.2]}))
    assert "yes & 0.1" in tex and "no & 0.2" in tex
    assert tex.isascii() and r"$|$$\Delta$$\tau$$|$" in tex


def test_markdown_has_the_same_cells_a_line_of_dashes_and_the_note_below():
    frame = pd.DataFrame({"kind": ["a|b", "c"], "val_loss": [3.5, math.nan], "note": "not whole"})
    assert printed.markdown(frame).splitlines() == [
        "| kind | val. loss |", "| :--- | ---: |", r"| a\|b | 3.500 |", "| c | – |", "", "*not whole*",
    ]  # fmt: skip
    headings, cells = printed.columns(frame.drop(columns="note"))
    assert all(text.replace("|", r"\|") in printed.markdown(frame) for column in (headings, *cells) for text in column)


def test_counts_in_a_unit_are_not_cut_to_whole_ones():
    assert printed.columns(pd.DataFrame({"wire_bytes": [5_600, 68_291]}))[1] == [["5.60", "68.29"]]
