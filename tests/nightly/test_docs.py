"""The site: public names have their place, links lead somewhere, proofs name tests."""

import ast
import http.server
import importlib.util
import inspect
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.audits.catalogue import cases
from tests.unit.test_public_api import PACKAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
)
GUIDES = sorted(path for path in PAGES if "```python\n" in path.read_text())
BROWSERS = "chromium", "chromium-browser", "google-chrome"
FAULTY = """<main><article><p style="width: 2000px">wide</p><a href="#no">x</a>
<p style="width: 9px; overflow: hidden">incomprehensible</p><a href="no.html">x</a>
<img src="no.png" width="9" height="9"></article></main><script>no.no</script>"""
FAULTS = "HTML scrolls sideways", "no anchor /0.html#no", "no page /no.html"
FAULTS += "wider than its box: incompr", "no picture: ", "no is not defined"


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
    for place in places:
        assert (ROOT / place).exists() or (ROOT / "dpjax" / place).exists(), place


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in "sphinx_book_theme", "myst_nb", "sphinx_design", "sphinx_copybutton":
        pytest.importorskip(name)  # of the extra `docs`
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    command += ["-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr
    return folder / "html"


def test_site_is_built_without_warnings_and_asks_no_other_host(site):
    asks = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|"
        r"<link[^>]*rel=\"(?:stylesheet|preload)\"[^>]*href=\"(?:https?:)?//"
    )
    pages = site.rglob("*.html")
    texts = {x.relative_to(site).as_posix(): x.read_text() for x in pages}
    assert [name for name, text in texts.items() if asks.search(text)] == []
    for name in ("privacy/counting.html", "generated/notebooks/dp_mean.html"):
        assert "<math" in texts[name]
    clipping = texts["generated/api/dpjax.estimators/Clipping.html"]
    for part in ("[source]", 'href="Mean.html#dpjax.estimators.Mean"', ".influence"):
        assert part in clipping
    assert [name for name, text in texts.items() if ":math:" in text] == []
    from sphinx.util.inventory import InventoryFile

    kinds = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    assert public_names() <= {name for names in kinds.values() for name in names}


def problems_in_a_browser(browser, site, folder):
    """Opens all pages by `browser.html`, which a server of its own hands out."""
    pages = [f"/{path.relative_to(site).as_posix()}" for path in site.rglob("*.html")]
    checker = (Path(__file__).parent / "browser.html").read_bytes()
    made = {"/": checker, "/pages.json": json.dumps(pages).encode()}
    found = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            if self.path not in made:
                return super().do_GET()
            self.send_response(200)
            self.end_headers()
            return self.wfile.write(made[self.path])

        def do_POST(self):
            found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    handler, log = partial(Handler, directory=site), folder / "log"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = [browser, "--headless", "--no-sandbox", "--enable-logging=stderr"]
        words += [f"--user-data-dir={folder}", "--remote-debugging-port=0"]
        words += ["--disable-gpu", f"http://127.0.0.1:{server.server_port}/"]
        with log.open("w") as file, subprocess.Popen(words, stderr=file) as process:
            try:
                problems = found.get(timeout=1_800)
            finally:
                process.terminate()
                server.shutdown()
    said = re.findall(r":CONSOLE:\d+\] (.*)", log.read_text())
    of_theme = '"[PST]: ', '"Got invalid theme mode'
    return problems + [line for line in said if not line.startswith(of_theme)]


def test_pages_in_a_browser_have_no_faults_and_planted_ones_are_found(site, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs a browser: {' or '.join(BROWSERS)}")
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "0.html").write_text(FAULTY)
    found = problems_in_a_browser(browser, planted, tmp_path)
    assert [fault for fault in FAULTS if fault not in "\n".join(found)] == []
    assert problems_in_a_browser(browser, site, tmp_path) == []


FOLDER = DOCS / "privacy" / "proofs"
_HEAD = re.compile(r"^\((proof-[\w-]+)\)=\n## (\d+\.\d+) (.+)$", re.MULTILINE)
_FACT = re.compile(r"^\* (Code|Test|Audit|Source): (.+(?:\n  .+)*)$", re.MULTILINE)
STATEMENTS = [
    SimpleNamespace(
        anchor=anchor,
        number=number,
        facts={name: " ".join(x.split()) for name, x in _FACT.findall(text)},
    )
    for page in FOLDER.glob("*.md")
    for anchor, number, _, text in zip(
        *[iter(_HEAD.split(page.read_text())[1:])] * 4, strict=True
    )
]
_TEST = r"`(tests/[\w/]+\.py)::(\w+)`"


def test_statements_are_numbered_and_anchored_once():
    numbers = [[int(x) for x in one.number.split(".")] for one in STATEMENTS]
    pages = sorted({page for page, _ in numbers})
    assert pages == list(range(1, len(pages) + 1))
    for page in pages:
        own = [number for one, number in numbers if one == page]
        assert own == list(range(1, len(own) + 1))
    assert len({one.anchor for one in STATEMENTS}) == len(STATEMENTS)
    written = "".join(page.read_text() for page in FOLDER.glob("*.md"))
    assert written.count("\n(proof-") == len(STATEMENTS)


def test_comments_of_the_library_name_statements_that_are_there():
    link = re.compile(
        r"`docs/privacy/proofs/(\w+\.md)`,\s+(\d+\.\d+)(?:\s+and\s+(\d+\.\d+))?"
    )
    texts = {path: path.read_text() for path in (ROOT / "dpjax").rglob("*.py")}
    assert any(link.search(text) for text in texts.values())
    for path, text in texts.items():
        assert text.count("docs/privacy/proofs/") == len(link.findall(text)), path
        for page, *numbers in link.findall(text):
            heads = (FOLDER / page).read_text()
            assert all(f"\n## {number} " in heads for number in numbers if number), path


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
