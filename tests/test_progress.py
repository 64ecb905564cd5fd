"""The line before each point of a sweep: counted, with a bar on a terminal alone, and how long the rest takes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrad.progress import Progress, counted, duration

SCRIPT = """
from igrad.progress import Progress
progress = Progress()
progress.start(num_points=4, num_waiting=3)
print(progress.line("first: already finished", runs=False))
for name in ("second", "third", "fourth"):
    print(progress.line(name))
    progress.ran(60)
"""


def test_off_a_terminal_a_plain_line_per_point():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[1/4] first: already finished",
        "[2/4] second",
        "[3/4] third (about 2.0 min left)",
        "[4/4] fourth (about 60 s left)",
    ]


def test_on_a_terminal_a_bar_that_grows_and_nothing_is_overwritten():
    """What is drawn over and over is the run's own bar, below."""
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", SCRIPT], stdout=theirs, check=True)
    os.close(theirs)
    lines = os.read(ours, 1 << 16).decode().splitlines()
    os.close(ours)
    assert [line.split(" ")[0] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert [line.count("█") for line in lines] == [0, 5, 10, 15]
    assert lines[2].endswith("| about 2.0 min left: third")
    assert not any("\r" in line or "\x1b" in line for line in lines)


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=9), st.integers(1, 20))
def test_what_is_left_takes_as_long_as_what_ran(seconds, waiting):
    progress = Progress()
    progress.start(num_points=100, num_waiting=len(seconds) + waiting)
    assert progress.left_s is None, "nothing is known before a point has run"
    for each in seconds:
        progress.line("skipped", runs=False)
        progress.line("ran")
        progress.ran(each)
    assert progress.left_s == pytest.approx(sum(seconds) / len(seconds) * waiting)
    assert progress.number == 2 * len(seconds), "skipped points count"


def test_a_single_point_has_its_name_alone():
    assert Progress().line("outputs/runs/default") == "outputs/runs/default"


def test_numbers_in_words():
    assert (counted(1, "run"), counted(2, "run"), counted(0, "rank")) == ("1 run", "2 runs", "0 ranks")
    assert [duration(s) for s in (5, 89, 90, 899, 5400, 36000)] == ["5 s", "89 s", "1.5 min", "15 min", "1.5 h", "10 h"]
