"""Files that are made once, by whoever needs them first."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout


def cache() -> Path:
    """The folder for downloads, converted models, token windows: IGRAD_CACHE, or ~/.cache/igrad."""
    return Path(os.environ.get("IGRAD_CACHE") or "~/.cache/igrad").expanduser().absolute()


def made_once(path: Path, make: Callable[[Path], None], valid: Callable[[Path], bool] = Path.exists) -> Path:
    """`path`, made by `make(temporary path)` unless it is there and valid already.

    Whole or absent: the temporary name is renamed at the end, under a lock that other processes wait for.
    Raises ValueError when the folder cannot be written.
    """
    if valid(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        acquire(lock, path)
    except OSError as error:
        raise ValueError(
            f"cannot write to the cache folder {path.parent} ({error.strerror}); set IGRAD_CACHE to one that can be"
        ) from error
    try:
        if not valid(path):
            partial = path.with_name(f".{path.name}.partial")
            remove(partial)  # left by a process that was killed
            try:
                make(partial)
                remove(path)  # an invalid one; a folder cannot be renamed over another
                partial.rename(path)
            finally:
                remove(partial)
    finally:
        lock.release()
    return path


def acquire(lock: FileLock, path: Path) -> None:
    """Take the lock; say so when that means waiting."""
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another process that is making {path}", file=sys.stderr)
        lock.acquire()


def remove(path: Path) -> None:
    """Delete a file or folder if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
