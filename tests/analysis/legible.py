"""Whether a figure can be read: no text on another, none cut off."""

from __future__ import annotations

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def check(figure: Figure, name: str) -> None:
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    shown = {text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()}
    shown -= outside(figure)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    assert len(boxes) > 8
    for (a, box), (b, other) in itertools.combinations(boxes, 2):
        inner = box.padded(-0.5)
        assert not inner.overlaps(other), f"{name}: {a!r} lies on {b!r}"
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in boxes:
        assert box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1, f"{name}: {text!r} is cut"


def outside(figure: Figure) -> set[Text]:
    """Labels of ticks beyond the limits: matplotlib keeps them and does not draw them."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in (*axis.majorTicks, *axis.minorTicks) if not low <= tick.get_loc() <= high]
        hidden |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    return hidden
