"""Where a sweep stands: a line before each of its points, above the bar that the run draws itself."""

from __future__ import annotations

import sys
from statistics import mean

from tqdm import tqdm


def counted(number: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """About how long, in the unit that makes it short."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class Progress:
    """Points of a sweep, counted as they come; the rest takes as long as those that ran in this command did on average.

    A single point has no sweep around it and is told by its name alone.
    """

    def __init__(self) -> None:
        self.start(num_points=1, num_waiting=1)

    def start(self, num_points: int, num_waiting: int) -> None:
        """A sweep begins; `num_waiting` of its points are not finished yet."""
        self.num_points, self.num_waiting = num_points, num_waiting
        self.number = 0
        self.seconds: list[float] = []  # of the points that ran

    def ran(self, seconds: float) -> None:
        """Record how long the last point took."""
        self.num_waiting -= 1
        self.seconds.append(seconds)

    @property
    def left_s(self) -> float | None:
        """Of the points that wait, in seconds; None before one has run."""
        return mean(self.seconds) * max(1, self.num_waiting) if self.seconds else None

    def line(self, name: str, runs: bool = True) -> str:
        """The next point: its number, on a terminal as a bar too, its name, and the time left where it is to run."""
        self.number += 1
        if self.num_points == 1:
            return name
        head = f"[{self.number}/{self.num_points}]"
        left = f"about {duration(self.left_s)} left" if runs and self.left_s is not None else ""
        if sys.stdout.isatty():
            bar = tqdm.format_meter(self.number - 1, self.num_points, elapsed=0, bar_format="|{bar:20}|")
            return f"{head} {bar} {left and left + ': '}{name}"
        return f"{head} {name}{left and f' ({left})'}"
