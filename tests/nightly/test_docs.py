"""The site: every public name has its place, and links lead somewhere."""

import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_public_api import PACKAGES

ROOT = Path(__file__).parents[2]


DOCS = ROOT / "docs"


PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
)


GUIDES = sorted(path for path in PAGES if "```python\n" in path.read_text())


def load(path):
    """Imports a file by its path, as the site does and readers of a skeleton will."""
    name = f"docs_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def api():
    return load(DOCS / "_api.py")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_on_a_page(api, package):
    pages = {one.__name__: api.page(one) for one in api.packages()}
    assert package.__name__ in pages
    for name in package.__all__:
        if inspect.ismodule(getattr(package, name)):
            assert f"{package.__name__}.{name}" in pages
            continue
        home = api.home(package, name)
        entry = rf"^\.\. auto\w+:: {re.escape(home)}\.{name}$"
        shown = api.name_page(importlib.import_module(home), name)
        assert len(re.findall(entry, shown, re.MULTILINE)) == 1
        listed = f"{home}.{name}".removeprefix(f"{package.__name__}.")
        assert f"   ~{listed}\n" in pages[package.__name__]


def test_the_reference_has_every_public_name_once(api):
    listed = re.findall(r"\{py:obj\}`~([\w.]+)`", (DOCS / "api.md").read_text())
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        f"{api.home(package, name)}.{name}"
        for package in PACKAGES
        for name in package.__all__
        if not inspect.ismodule(getattr(package, name))
    }


def test_docstrings_link_names_and_no_arguments(api):
    targets = api.targets()
    for known in ("dp_mean", "solvers.dp_mean", "Clipping", "dpjax.robust_grad"):
        assert targets[known].split(".")[-1] == known.split(".")[-1]
    assert targets["Clipping.sensitivity"] == "dpjax.estimators.Clipping.sensitivity"
    assert targets["dpjax.estimators"] == "dpjax.estimators"
    assert not {"load", "gamma", "project", "key"} & targets.keys()


def test_pages_are_of_every_package(api):
    assert {one.__name__ for one in PACKAGES} <= {
        one.__name__ for one in api.packages()
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_included_files_exist(path):
    copies = load(DOCS / "_copies.py")
    text = path.read_text()
    targets = [target for _, _, target in copies.LINK.findall(text)]
    targets += re.findall(r"^```\{(?:literal)?include\} (\S+)$", text, re.MULTILINE)
    targets += re.findall(r"^:link: (\S+)$", text, re.MULTILINE)
    for target in targets:
        target = target.partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            continue
        file = (path.parent / target).resolve()
        parts = file.relative_to(DOCS).parts
        if parts[0] != "generated":
            assert file.exists() or file.with_suffix(".md").exists(), target
        elif parts[1] == "api":
            assert file.stem in {one.__name__ for one in PACKAGES}, target
        else:
            assert parts[1] in copies.PAGES.values(), target


def test_links_of_the_repository_are_rewritten(tmp_path):
    copies = load(DOCS / "_copies.py")
    source = copies.ROOT / "benchmarks" / "page.md"
    text = "[a](README.md#gpu) [b](plots) [c](#here) [d](__init__.py)"
    shown = copies.rewritten(text, source, DOCS / "generated")
    there = "../../benchmarks/__init__.py"
    assert shown == f"[a](speed.md#gpu) b [c](#here) [d]({there})"
    with pytest.raises(FileNotFoundError, match=r"page\.md links to no\.md"):
        copies.rewritten("[a](no.md)", source, tmp_path)


def test_docstrings_become_restructuredtext():
    convert = load(DOCS / "_api.py").as_rst
    lines = [
        *("The mean of x·1{|x| <= b_}: `a_b|c`.", "", "    f(x) = a*b", ""),
        *("A `f`:", "", "    e = m", "        c^2", ""),
        *("* a bullet", "  that goes on.", "", "Privacy:", "    Text.", ""),
        *(
            "        rho = |s|",
            "",
            "    More.",
            "",
            "Example:",
            "    >>> 2 * 3",
            "    6",
            "",
        ),
        *("    After_ it:", "", "    >>> f_", ""),
    ]
    assert convert(lines, {"f": "dpjax.f"}.get) == [
        *(r"The mean of x·1{\|x\| <= b\_}: ``a_b|c``.", ""),
        *("::", "", "    f(x) = a*b", ""),
        *("A :py:obj:`f <dpjax.f>`:", "", "::", ""),
        *("    e = m", "        c^2", ""),
        *("* a bullet", "  that goes on.", ""),
        *("Privacy:", "    Text.", "", "    ::", "", "        rho = |s|", ""),
        *("    More.", "", "Example:", "    >>> 2 * 3", "    6", ""),
        *(r"    After\_ it:", "", "    >>> f_", ""),
    ]


def needs_site():
    """Skips a test where the extra `docs` is not installed; .ci/run has it later."""
    for name in ("sphinx_book_theme", "myst_nb", "sphinx_design", "latex2mathml"):
        pytest.importorskip(name)
    pytest.importorskip("sphinx_copybutton")


def test_site_is_built_without_warnings_and_asks_no_other_host(tmp_path):
    needs_site()
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    result = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    asks = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|"
        r"<link[^>]*rel=\"(?:stylesheet|preload)\"[^>]*href=\"(?:https?:)?//"
    )
    pages = list((tmp_path / "html").rglob("*.html"))
    assert [page.name for page in pages if asks.search(page.read_text())] == []
    texts = {
        page.relative_to(tmp_path / "html").as_posix(): page.read_text()
        for page in pages
    }
    mechanism = "generated/api/dpjax.mechanisms/arsinh_normal.html"
    for name in ("privacy/counting.html", "generated/notebooks/dp_mean.html"):
        assert "<math" in texts[name]
    assert "[source]" in texts[mechanism]
    assert [name for name, text in texts.items() if ":math:" in text] == []
    index = (tmp_path / "html" / "searchindex.js").read_text()
    index = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    for words, page in {
        "predict": "guides/table",
        "batchnorm": "guides/own_loop",
        "confidence interval": "guides/intervals",
        "valueerror": "faq",
    }.items():
        found = {index["docnames"][place[0]] for place in index["indexentries"][words]}
        assert page in found
    from sphinx.util.inventory import InventoryFile

    content = (tmp_path / "html" / "objects.inv").read_bytes()
    names = {
        name
        for kind, found in InventoryFile.loads(content, uri="").data.items()
        if kind.startswith("py:")
        for name in found
    }
    api = load(DOCS / "_api.py")
    for package in PACKAGES:
        for name in package.__all__:
            if not inspect.ismodule(getattr(package, name)):
                assert f"{api.home(package, name)}.{name}" in names
