"""A number per component as a picture: layers from left to right, kinds from top to bottom."""

from __future__ import annotations

import numpy as np


def grid(values: dict[str, float]) -> tuple[np.ndarray, list[str], list[str]]:
    """Component -> number, to (float64 [kinds, layers], kinds, layers); NaN where there is no such component.

    `embed` and `head` are kinds of a layer without a name.
    """
    places = {name: name.rpartition(".")[::2] for name in values}
    layers, kinds = (list(dict.fromkeys(words)) for words in zip(*places.values(), strict=True))
    table = np.full((len(kinds), len(layers)), np.nan)
    for name, (layer, kind) in places.items():
        table[kinds.index(kind), layers.index(layer)] = values[name]
    return table, kinds, layers


def picture(values: dict[str, float], title: str) -> np.ndarray:
    """uint8 [height, width, 3]. Shades from zero, or the least where that is less, to the largest; unknown is grey."""
    import matplotlib  # takes half a second, and most processes draw nothing
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table, kinds, layers = grid(values)
    width, height = 2.5 + 0.3 * len(layers), 1 + 0.3 * len(kinds)  # inches
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(left=0.7 / width, right=1 - 0.1 / width, bottom=0.5 / height)
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    cmap = matplotlib.colormaps["Blues"].with_extremes(bad="#DDDDDD")
    image = axes.imshow(table, cmap=cmap, vmin=min(0.0, np.nanmin(table)), aspect="auto", interpolation="none")
    axes.set_xticks(range(len(layers)), layers)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set(title=title, xlabel="layer")
    figure.colorbar(image, ax=axes, fraction=0.8 / width, pad=0.2 / width)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
