import pytest

from igrad import results
from tests.analysis import synthetic


@pytest.fixture(scope="session")
def outputs(tmp_path_factory):
    return synthetic.complete(tmp_path_factory)


@pytest.fixture(scope="session")
def study(outputs):
    return results.load("rq3", outputs)
