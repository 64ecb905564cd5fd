"""What the codecs of rising positions share: refusing others."""

from __future__ import annotations

from torch import Tensor


def check_rising(positions: Tensor, space: int) -> None:
    """ValueError where positions int64 [k] do not rise or leave [0, space). Waits for the device."""
    if not positions.numel():
        return
    falls = (positions[1:] <= positions[:-1]).nonzero()
    if falls.numel():
        before, after = positions[falls[0, 0]], positions[falls[0, 0] + 1]
        raise ValueError(f"positions must rise, got {int(after)} after {int(before)}; sort them and leave out repeats")
    for end in (int(positions[0]), int(positions[-1])):
        if not 0 <= end < space:
            raise ValueError(f"positions must be in [0, {space}), the elements of the bucket, got {end}")
