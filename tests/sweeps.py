"""Sweeps without all their combinations: composing a point takes a quarter of a second."""

from __future__ import annotations

import pytest

from igrad import compose


def thin(monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...] = ("",)) -> None:
    """Of a sweep's points only those that have a value none before had; of the overrides that begin with `keys`."""
    split = compose.BasicSweeper.split_arguments

    def thinned(*args):
        [batch], seen = split(*args), set()
        for point in batch:
            new = {override for override in point if override.startswith(keys)} - seen
            seen |= new
            if new:
                yield point

    monkeypatch.setattr(compose.BasicSweeper, "split_arguments", lambda *args: [list(thinned(*args))])
