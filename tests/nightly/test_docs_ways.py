"""The ways to a page."""

import re
import sys

import pytest

from tests.nightly.test_docs import DOCS, PAGES

sys.path.append(str(DOCS))
import _copies

# What people come for, and the page that has it.
TASKS = {
    "what epsilon": "guides/epsilon.md",
    "which method": "which_method.md",
    "predict": "guides/table.md",
    "baseline": "guides/network.md",
    "error bar": "guides/intervals.md",
    "a proof": "privacy/proofs/papers.md",
    "cite": "contribute/cite.md",
}


def links(page):
    """Pages that a click on a page of docs leads to, menus included."""
    path, text = DOCS / page, (DOCS / page).read_text()
    found = [target for _, _, target in _copies.LINK.findall(text)]
    found += re.findall(r"^:link: (\S+)$", text, re.MULTILINE)
    for menu in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
        found += re.findall(r"^([\w/.]+)$", menu, re.MULTILINE)
    for target in found:
        file = (path.parent / target.partition("#")[0]).resolve()
        for one in (file, file.with_suffix(".md")):
            if one in PAGES:
                yield one.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_three_clicks_from_home(task):
    reached = {"index.md"}
    for _ in range(3):
        reached |= {target for page in reached for target in links(page)}
    assert TASKS[task] in reached


def test_menus_have_the_titles_of_the_pages():
    for page in PAGES:
        for menu in re.findall(
            r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL
        ):
            assert "<" not in menu, page.name
