"""Each proved statement names code, a test and an audit that are there."""

import ast
import importlib
import re
from typing import NamedTuple

import pytest

from benchmarks.audits.catalogue import cases
from tests.nightly.test_docs import DOCS, ROOT

FOLDER = DOCS / "privacy" / "proofs"
_HEAD = re.compile(r"^\((proof-[\w-]+)\)=\n## (\d+\.\d+) (.+)$", re.MULTILINE)
_FACT = re.compile(r"^\* (Code|Test|Audit|Source): (.+(?:\n  .+)*)$", re.MULTILINE)


class Statement(NamedTuple):
    anchor: str
    number: str
    title: str
    facts: dict[str, str]


STATEMENTS = [
    Statement(
        *(anchor, number, title),
        {name: " ".join(x.split()) for name, x in _FACT.findall(text)},
    )
    for page in FOLDER.glob("*.md")
    for anchor, number, title, text in zip(
        *[iter(_HEAD.split(page.read_text())[1:])] * 4, strict=True
    )
]
_TEST = r"`(tests/[\w/]+\.py)::(\w+)`"


def test_statements_are_numbered_and_anchored_once():
    numbers = [[int(x) for x in one.number.split(".")] for one in STATEMENTS]
    pages = sorted({page for page, _ in numbers})
    assert pages == list(range(1, len(pages) + 1))
    for page in pages:
        found = [number for one, number in numbers if one == page]
        assert found == list(range(1, len(found) + 1))
    assert len({one.anchor for one in STATEMENTS}) == len(STATEMENTS)
    written = "".join(page.read_text() for page in FOLDER.glob("*.md"))
    assert written.count("\n(proof-") == len(STATEMENTS)


def test_comments_of_the_library_name_statements_that_are_there():
    link = re.compile(
        r"`docs/privacy/proofs/(\w+\.md)`,\s+(\d+\.\d+)(?:\s+and\s+(\d+\.\d+))?"
    )
    links = 0
    for path in (ROOT / "dpjax").rglob("*.py"):
        text = path.read_text()
        assert text.count("docs/privacy/proofs/") == len(link.findall(text)), path
        for page, *numbers in link.findall(text):
            heads = (FOLDER / page).read_text()
            links += 1
            assert all(f"\n## {number} " in heads for number in numbers if number), path
    assert links


@pytest.mark.parametrize("one", STATEMENTS, ids=lambda one: one.anchor)
def test_code_test_and_audit_of_a_statement_exist(one):
    assert set(one.facts) == {"Code", "Test", "Audit", "Source"}
    modules = re.findall(r"`(dpjax/[\w/]+\.py)`", one.facts["Code"])
    assert modules
    assert all((ROOT / module).is_file() for module in modules)
    for name in re.findall(r"\{py:obj\}`~dpjax\.([\w.]+)`", one.facts["Code"]):
        package, _, attribute = name.partition(".")
        assert hasattr(importlib.import_module(f"dpjax.{package}"), attribute), name
    tests = re.findall(_TEST, one.facts["Test"])
    assert tests
    # An attack that is no case of the catalogue is a test.
    attacks = re.findall(_TEST, one.facts["Audit"])
    for path, function in tests + attacks:
        tree = ast.parse((ROOT / path).read_text())
        assert function in {getattr(node, "name", "") for node in tree.body}, function
    audits = re.findall(r"`(\w+)`", one.facts["Audit"])
    assert audits or attacks
    assert set(audits) <= set(cases())
    assert re.search(r"\]\(https://|this page", one.facts["Source"])
