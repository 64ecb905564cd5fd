"""Views and payloads cut into blocks, so that one large tensor need not fill a bucket of its own."""

from __future__ import annotations

from itertools import pairwise

import torch

from igrad.interfaces import Payload


def cuts(part: slice, block_numel: int | None) -> list[slice]:
    """A range of a view's elements as blocks of at most `block_numel`; None = one block.

    Blocks begin at multiples of `block_numel` in the view, whatever the range, so that they keep their identity.
    """
    if block_numel is None:
        return [part]
    inner = range(part.start - part.start % block_numel + block_numel, part.stop, block_numel)
    edges = [part.start, *inner, part.stop]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def split(payload: Payload, blocks: list[slice]) -> list[Payload]:
    """A payload cut at `blocks`, which cover its range in order.

    How many entries a block has is the data's choice: it waits for the device.
    """
    if len(blocks) == 1:
        return [payload]
    inside = [slice(block.start - payload.start, block.stop - payload.start) for block in blocks]
    sources = [None if payload.source is None else payload.source[part] for part in inside]
    if payload.indices is None:
        parts = [(payload.values[part], None) for part in inside]
    else:
        indices, order = payload.indices.sort()
        edges = torch.tensor([part.stop for part in inside], device=indices.device)
        stops = torch.searchsorted(indices, edges).tolist()
        bounds = zip([0, *stops], stops, inside, strict=False)
        values = payload.values[order]
        parts = [(values[first:last], indices[first:last] - part.start) for first, last, part in bounds]
    return [
        Payload(payload.view, block.start, block.stop - block.start, values, indices, source)
        for block, (values, indices), source in zip(blocks, parts, sources, strict=True)
    ]
