"""No sparsifier keeps everything."""

import pytest
import torch

from igrad.interfaces import View
from igrad.sparsifier.none import NoSparsifier


@pytest.mark.parametrize("shape", ((1,), (7,), (3, 5)))
@pytest.mark.parametrize("share", (0.1, 1.0, 4.0))
def test_every_entry_is_kept_whatever_the_share(shape, share):
    assert NoSparsifier().select(torch.zeros(shape), View("v", None, "v", shape), 3, share) is None
