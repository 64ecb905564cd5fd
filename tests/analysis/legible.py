"""Whether a figure can be read: no text on another, none cut off, all that is drawn by name named."""

from __future__ import annotations

import itertools

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from analysis import style


def check(figure: Figure, name: str) -> None:
    """At its final size."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown(figure)]
    assert boxes
    for (a, box), (b, other) in itertools.combinations(boxes, 2):
        inner = box.padded(-0.5)
        assert not inner.overlaps(other), f"{name}: {a!r} lies on {b!r}"
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in boxes:
        assert box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1, f"{name}: {text!r} is cut"
    sizes = {text.get_fontsize() for text in shown(figure)}
    assert figure.get_figwidth() == style.WIDTH and min(sizes) >= SMALLEST, f"{name}: {min(sizes)} points"


SMALLEST = 5.5  # points, of a number in a cell; words are larger


def named(figure: Figure, name: str) -> None:
    """Every axis says what it measures; what is drawn under a label is found under it in the legend or in the panel."""
    for axes in panels(figure):
        rows = any(each.get_yticklabels() for each in (axes, *axes.get_shared_y_axes().get_siblings(axes)))
        assert label_of(axes, "x") and (label_of(axes, "y") or rows), f"{name}: an axis without label"
    texts = " ".join(text.get_text().replace("\n", " ") for text in shown(figure))
    missing = {label for axes in figure.axes for label in labels(axes)} - {
        label for axes in figure.axes for label in labels(axes) if label in texts or label in UNNAMED
    }
    assert not missing, f"{name}: {missing} are not named"


UNNAMED = {"step", "frontier"}  # the legend calls them "whole step" and "on the frontier"


def labels(axes: Axes) -> set[str]:
    """What artists of a panel are labelled as; matplotlib gives those that are not a name with an underscore."""
    artists: list[Artist | Container] = [*axes.get_children(), *axes.containers]
    told = {str(each.get_label()) for each in artists if isinstance(each, Line2D | Patch | Container)}
    return {label for label in told if label and not label.startswith("_")}


def panels(figure: Figure) -> list[Axes]:
    """Without the colour bars."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def label_of(axes: Axes, which: str) -> str:
    """Of an axis; panels that share it say it once, those of a whole figure in its own label."""
    shared = getattr(axes, f"get_shared_{which}_axes")().get_siblings(axes)
    told = [getattr(each, f"get_{which}label")() for each in (axes, *shared)]
    return next(filter(None, [*told, getattr(axes.figure, f"get_sup{which}label")()]), "")


def shown(figure: Figure) -> set[Text]:
    texts = {text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()}
    return texts - outside(figure)


def outside(figure: Figure) -> set[Text]:
    """Labels of ticks beyond the limits: matplotlib keeps them and does not draw them."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in (*axis.majorTicks, *axis.minorTicks) if not low <= tick.get_loc() <= high]
        hidden |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    return hidden
