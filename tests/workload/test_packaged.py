"""The packaged workloads hold what their sources hold."""

from itertools import islice
from xml.etree import ElementTree

import pytest

from igrad.workload.instruct import Instruct
from igrad.workload.pubmed import PubMed, abstracts
from igrad.workload.pubmed import plain as abstract_text
from igrad.workload.tldr import Tldr, plain
from igrad.workload.wiki import Wiki

PACKAGED = [PubMed(), Wiki(), Instruct(), Tldr()]


@pytest.mark.parametrize("workload", PACKAGED, ids=lambda workload: type(workload).__name__)
def test_holds_as_many_documents_as_it_says_and_none_is_empty(workload):
    documents = list(workload.documents())
    assert len(documents) == len(workload)
    assert all(document.text.strip() for document in documents)
    has_prompts = isinstance(workload, (Instruct, Tldr))
    assert all(bool(document.prompt.strip()) == has_prompts for document in documents)


def test_fingerprints_differ():
    assert len({workload.fingerprint() for workload in PACKAGED}) == len(PACKAGED)


ARTICLES = """<PubmedArticleSet>
<PubmedArticle>
  <Abstract>
    <AbstractText Label="A">First <i>in</i> vivo, p &lt; 1.</AbstractText>
    <AbstractText>Second.</AbstractText>
  </Abstract>
  <OtherAbstract>
    <AbstractText>Elsewhere.</AbstractText>
  </OtherAbstract>
</PubmedArticle>
<PubmedArticle>
  <Abstract>
    <AbstractText>Not ours.</AbstractText>
    <CopyrightInformation>Theirs.</CopyrightInformation>
  </Abstract>
</PubmedArticle>
<PubmedArticle/>
</PubmedArticleSet>
"""


def test_abstracts_are_joined_and_copyrighted_ones_left_out():
    texts = [abstract_text(ElementTree.fromstring(block)) for block in abstracts(ARTICLES.splitlines(keepends=True))]
    assert texts == ["First in vivo, p < 1. Second.", ""]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tar {{[-x|--extract]}} {{[-f|--file]}} {{path/to/a.tar}}", "tar --extract --file path/to/a.tar"),
        ("echo ${{{array[@]}}}", "echo ${array[@]}"),
        ("[ {{1}} -{{eq|ne}} 2 ]", "[ 1 -eq|ne 2 ]"),
        ("awk '{print}'", "awk '{print}'"),
    ],
)
def test_command_lines_lose_their_markup(line, expected):
    assert plain(line) == expected


def test_commands_are_groups_and_descriptions_prompts():
    documents = list(islice(Tldr().documents(), 2000))
    assert all(document.group for document in documents)
    assert all(document.prompt.endswith(":\n") for document in documents)
