"""What the collectives share: bytes on the wire, and dense buckets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from igrad.interfaces import Payload


def allreduce_bytes(num_bytes: int, num_ranks: int) -> int:
    """Sent by each rank in a ring all-reduce: 2 (N - 1) / N of the buffer."""
    return round(2 * (num_ranks - 1) / num_ranks * num_bytes)


def value_dtype(bucket: Sequence[Payload]) -> torch.dtype:
    """The widest value type of a bucket, so that mixed payloads share a buffer without loss."""
    dtype = bucket[0].values.dtype
    for payload in bucket[1:]:
        dtype = torch.promote_types(dtype, payload.values.dtype)
    return dtype


def split(flat: Tensor, bucket: Sequence[Payload]) -> list[Tensor]:
    """Cut a dense bucket [sum of numel] into its payloads' ranges."""
    return list(flat.split([payload.numel for payload in bucket]))
