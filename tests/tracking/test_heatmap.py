"""Every component has one place, and a larger number a darker one."""

import numpy as np

from igrad.components import KINDS
from igrad.tracking.heatmap import grid, picture

VALUES = {f"{layer}.{kind}": layer + i / 10 for layer in range(5) for i, kind in enumerate(KINDS)}


def test_every_component_has_its_place():
    table, kinds, layers = grid({"embed": 7.0, **VALUES, "head": 8.0})
    found = {
        f"{layer}.{kind}".lstrip("."): table[y, x] for y, kind in enumerate(kinds) for x, layer in enumerate(layers)
    }
    assert {name: value for name, value in found.items() if not np.isnan(value)} == {"embed": 7, **VALUES, "head": 8}
    assert list(kinds) == ["embed", *KINDS, "head"] and list(layers) == ["", *"01234"]


def test_the_picture_follows_the_numbers():
    pictures = [picture(values, "x") for values in (VALUES, dict(reversed(VALUES.items())), dict.fromkeys(VALUES, 1.0))]
    assert all(image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 for image in pictures)
    assert (pictures[0] == picture(VALUES, "x")).all()
    assert not any((pictures[0] == other).all() for other in pictures[1:] if other.shape == pictures[0].shape)


def test_nothing_known_is_no_error():
    assert picture({"0.q": 0.0, "0.k": 0.0}, "x").size
