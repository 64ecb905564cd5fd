"""What the command lines beside run.py share: a mistake is a ValueError, which they tell in one line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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
