"""Pictures, the ways to a page, and where it is edited."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import DOCS, PAGES, ROOT, needs_site
from tests.test_docs_examples import examples

sys.path.append(str(DOCS))
import _copies
import _edit
import _gallery
import _pictures

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


@pytest.fixture
def folder(tmp_path):
    for name in ("images", "tables"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_gallery_has_every_picture(folder):
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    kept = {name for name in files if re.search(r"\.(png|svg|jpe?g|gif|webp)$", name)}
    kept -= {"docs/static/favicon.svg"}
    expected = {re.sub(r"-(light|dark)\.svg$", ".svg", name) for name in kept}
    for path in _copies.notebooks():
        count = json.dumps(json.loads(path.read_text())).count('"image/png"')
        name = path.relative_to(ROOT).as_posix()
        expected |= {f"{name}#{1 + i}" for i in range(count)}
    _pictures.write(folder / "drawn")
    drawn = {path.name.rpartition("-")[0] for path in (folder / "drawn").iterdir()}
    expected |= {f"docs/generated/images/{name}.svg" for name in drawn}
    assert {one.key for one in _gallery.pictures()} == expected
    shown = _gallery.table(folder)
    assert shown.count("{grid-item-card}") == len(expected)


def test_a_thumbnail_leads_to_its_page_and_code(folder):
    shown = _gallery.table(folder)
    _gallery.write_page(folder)
    place = "generated/figures.md#figure-000-1"
    assert f"(generated/images/benchmarks-plots-figures-000-1.png)]({place})" in shown
    assert shown.count("(plots/predictions-light.svg)") == 1  # on two pages
    assert "[dpjax](index.md), [Which method?](which_method.md)" in shown
    for code in re.findall(r"\(generated/(code/[^)]*)\)", shown):
        text = (folder / code).read_text()
        (source,) = re.findall(r"\{literalinclude\} \.\./\.\./\.\./(\S+)", text)
        assert (ROOT / source).exists()
    for name in re.findall(r"\(generated/images/(notebooks-[^)]*)\)", shown):
        assert (folder / "images" / name).read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_nothing_draws_is_refused(folder, monkeypatch):
    monkeypatch.delitem(_gallery.CODE, "docs/plots")
    with pytest.raises(KeyError, match="docs/plots"):
        _gallery.table(folder)


def test_picture_of_the_network_shows_what_its_page_prints():
    (code,) = (x.values[1] for x in examples() if x.id == "network.md")
    printed = "\n".join(re.findall(r"^#> (.*)$", code, re.MULTILINE))
    rows = _pictures.numbers(printed)
    names = ["constant", "not private", "epsilon 0.3", "epsilon 1"]
    assert [name for name, *_ in rows][:4] == names
    assert rows == _pictures.numbers(_pictures.NETWORK.read_text())


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


def test_every_page_is_edited_in_a_file_of_the_repository():
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES]
    pages += [f"generated/{Path(name).stem}" for name in _copies.PAGES.values()]
    pages += [f"generated/notebooks/{path.stem}" for path in _copies.notebooks()]
    pages += [
        f"generated/code/{_gallery.name_of(code)}" for code, _ in _gallery.CODE.values()
    ]
    for page in pages:
        assert (ROOT / _edit.source(page)).is_file(), page


@pytest.mark.parametrize(
    ("page", "source"),
    {
        "guides/network": "docs/guides/network.md",
        "generated/utility": "benchmarks/pages/UTILITY.md",
        "generated/changelog": "CHANGELOG.md",
        "generated/notebooks/dp_mean": "notebooks/dp_mean.ipynb",
        "generated/api/dpjax.estimators": "dpjax/estimators/__init__.py",
        "generated/api/dpjax.estimators/Clipping": "dpjax/estimators/_clipping.py",
        "generated/api/dpjax/REPLACE_ONE": "dpjax/__init__.py",
    }.items(),
)
def test_a_page_is_edited_where_it_is_written(page, source):
    def theirs():
        return "GitHub", f"https://host/edit/main/docs/{page}.md"

    context = {"get_edit_provider_and_url": theirs, "page_source_suffix": ".md"}
    _edit.add_edit_url(None, page, None, context, object())
    _, url = context["get_edit_provider_and_url"]()
    assert url == f"https://host/edit/main/{source}"


@pytest.mark.slow
@pytest.mark.parametrize("address", ["", "https://github.com/someone/dpjax"])
def test_edit_links_are_on_once_there_is_an_address(tmp_path, address):
    needs_site()
    pages = {
        "index": "docs/index.md",
        "generated/utility": "benchmarks/pages/UTILITY.md",
    }
    (tmp_path / "generated").mkdir()
    for page in pages:
        (tmp_path / f"{page}.md").write_text("---\norphan: true\n---\n# Title\n")
    code = (
        f"import sys\nsys.path[:0] = [{str(DOCS)!r}, {str(ROOT)!r}]\n"
        f"import _edit\n_edit.REPOSITORY = {address!r}\nimport conf\n"
        "extensions = ['myst_parser']\nhtml_theme = conf.html_theme\n"
        "html_theme_options = conf.html_theme_options\nsetup = conf.connect\n"
    )
    (tmp_path / "conf.py").write_text(code)
    command = (sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", ".", "site")
    subprocess.run(command, cwd=tmp_path, check=True)
    for page, source in pages.items():
        shown = (tmp_path / "site" / f"{page}.html").read_text()
        found = re.findall(r'href="https://[^"]*/edit/main/([^"]*)"', shown)
        assert found == ([source] if address else [])
        assert ("github.com" in shown) == bool(address)
