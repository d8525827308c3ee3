"""The site: every public name has its place, and links lead somewhere."""

import importlib.util
import inspect
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
    name = f"docs_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def public_names():
    """Full names of all that is public, each in the package that has its page."""
    home = load(DOCS / "_pages.py").home
    names = ((package, name) for package in PACKAGES for name in package.__all__)
    names = (x for x in names if not inspect.ismodule(getattr(*x)))
    return {f"{home(*one)}.{one[1]}" for one in names}


def test_the_reference_has_every_public_name_once():
    listed = re.findall(r"\{py:obj\}`~([\w.]+)`", (DOCS / "api.md").read_text())
    assert len(listed) == len(set(listed))
    assert set(listed) == public_names()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_included_files_exist(path):
    copies, text = load(DOCS / "_pages.py"), path.read_text()
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


def test_the_map_names_files_and_folders_that_are_there():
    text = (DOCS / "contribute" / "map.md").read_text()
    places = set(re.findall(r"`([\w/]+/\w+(?:\.py)?|[\w/]+\.py)`", text))
    assert len(places) > 40
    found = (ROOT / "dpjax" / place for place in places if not (ROOT / place).exists())
    assert [path for path in found if not path.exists()] == []


def test_site_is_built_without_warnings_and_asks_no_other_host(tmp_path):
    for name in "sphinx_book_theme", "myst_nb", "sphinx_design", "sphinx_copybutton":
        pytest.importorskip(name)  # of the extra `docs`
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    site = tmp_path / "html"
    result = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(site)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    asks = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|"
        r"<link[^>]*rel=\"(?:stylesheet|preload)\"[^>]*href=\"(?:https?:)?//"
    )
    texts = {
        x.relative_to(site).as_posix(): x.read_text() for x in site.rglob("*.html")
    }
    assert [name for name, text in texts.items() if asks.search(text)] == []
    for name in ("privacy/counting.html", "generated/notebooks/dp_mean.html"):
        assert "<math" in texts[name]
    clipping = texts["generated/api/dpjax.estimators/Clipping.html"]
    for part in ("[source]", 'href="Mean.html#dpjax.estimators.Mean"', ".influence"):
        assert part in clipping
    assert [name for name, text in texts.items() if ":math:" in text] == []
    from sphinx.util.inventory import InventoryFile

    content = (site / "objects.inv").read_bytes()
    kinds = InventoryFile.loads(content, uri="").data
    assert public_names() <= {name for found in kinds.values() for name in found}
