"""What a notebook shows: tables, figures and sentences, one call each."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure

from analysis import printed, style


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
