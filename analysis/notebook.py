"""What a notebook shows: tables, figures and sentences, one call each."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure

from analysis import printed, style
from igrad import results
from igrad.results import Study


def study(question: ModuleType) -> Study:
    """The complete sweeps of an RQ (its module in rq/), of one setting; in outputs/ here or beside this folder."""
    name = question.__name__.split(".")[-1]
    places = [Path("outputs"), Path("../outputs")]
    folder = next((place for place in places if (place / name).is_dir()), places[0])
    return results.load(name, folder).complete().setting(question.AXES)


def table(frame: pd.DataFrame) -> None:
    """A table as the paper prints it: mean ± sd in one cell."""
    headings, cells = printed.columns(frame)
    display(pd.DataFrame(dict(zip(headings, cells, strict=True))))


def show(figure: Figure) -> None:
    """A figure in the page."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    display(Image(png.getvalue(), width=int(72 * 1.6 * style.WIDTH)))


def say(text: Any) -> None:
    """Markdown."""
    display(Markdown(str(text)))
