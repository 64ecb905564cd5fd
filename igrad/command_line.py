"""What the command lines beside run.py share: a mistake is a ValueError, which they tell in one line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see --help")


def words(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """The words of a comma list, each a known one."""
    known, told = list(known), [word for word in text.split(",") if word]
    wrong = [word for word in told if word not in known]
    if wrong or not told:
        raise ValueError(f"{flag} must be of {', '.join(known)}, got '{wrong[0] if wrong else text}'")
    return told


def no_file_on_the_way(path: Path) -> None:
    """ValueError where a folder and its parents could not be made because one of them is a file."""
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"cannot write to {path}: {there} is a file; choose another --out")


def output_folder(path: Path) -> Path:
    """A folder to write to, made with its parents. ValueError where it cannot be."""
    no_file_on_the_way(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}; choose another --out") from error
    return path


def output_file(path: Path) -> Path:
    """A file to write, its folder made. ValueError where it cannot be."""
    if path.is_dir():
        raise ValueError(f"cannot write to {path}: it is a folder; --out names a file")
    output_folder(path.parent)
    return path
