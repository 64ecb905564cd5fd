import functools
import importlib

import pytest

from analysis.make_figures import question
from igrad import results
from tests.analysis import planted, synthetic


class Library:
    """A complete sweep of every study and its figures, made when first asked for, once per session. Not to change."""

    def __init__(self, factory):
        self.factory = factory
        self.study, self.figures = functools.cache(self.study), functools.cache(self.figures)

    def outputs(self, name):
        return synthetic.complete(self.factory, name, planted.TRUTHS[name])

    def study(self, name):
        return results.load(name, self.outputs(name))

    def figures(self, name):
        return importlib.import_module(f"analysis.{question(name)}").figures(self.study(name))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return Library(tmp_path_factory)


@pytest.fixture(scope="session")
def outputs(library):
    return library.outputs("rq3")


@pytest.fixture(scope="session")
def study(library):
    return library.study("rq3")
