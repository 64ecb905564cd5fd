"""What a W&B run has written to its own file, read without wandb's server side."""

from __future__ import annotations

import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def by_type(folder: Path) -> dict[str, list[Any]]:
    """The records of the one offline run in `folder`/wandb, complete.

    W&B's own process writes the last ones just after `finish` has returned.
    """
    [path] = (folder / "wandb").glob("offline-run-*/*.wandb")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = defaultdict(list)
        for record in records(path):
            found[record.WhichOneof("record_type")].append(record)
        if "exit" in found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{path}: no record of the run's end within 60 s of `finish`")


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: a 7-byte header, then LevelDB's log format; a half-written end is left."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, whole = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no header is split over two blocks
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        if position + 7 + length > len(content):
            return
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def items(entries: Any) -> dict[str, Any]:
    """Key -> value; what is nested has a dotted key."""
    return {entry.key or ".".join(entry.nested_key): json.loads(entry.value_json) for entry in entries}
