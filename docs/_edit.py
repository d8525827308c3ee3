"""Where a page is edited: the file of the repository that it is written from."""

import importlib
import inspect
import tomllib
from pathlib import Path

import _copies
import _gallery
from _copies import ROOT

# The one setting of a repository's address; edit links are off until it is there.
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = _PROJECT.get("urls", {}).get("Repository", "")

_COPIES = {Path(page).stem: source for source, page in _copies.PAGES.items()}


def source(page: str) -> str:
    """Returns the file that a page of the site is written from.

    A page of measurements is written from records around a frame, which is what can be
    edited, and one of the API from a docstring.
    """
    folder, _, name = page.rpartition("/")
    if folder == "generated":
        frame = ROOT / "benchmarks" / "pages" / Path(_COPIES[name]).name
        return frame.relative_to(ROOT).as_posix() if frame.exists() else _COPIES[name]
    if folder == "generated/notebooks":
        return f"notebooks/{name}.ipynb"
    if folder == "generated/code":
        return next(x for x, _ in _gallery.CODE.values() if _gallery.name_of(x) == name)
    if page.startswith("generated/api/"):
        return _documented(page.removeprefix("generated/api/"))
    return f"docs/{page}.md"


def _documented(page: str) -> str:
    package, _, name = page.partition("/")
    module = importlib.import_module(package)
    value = inspect.unwrap(getattr(module, name)) if name else module
    is_code = inspect.ismodule(value) or inspect.isclass(value) or callable(value)
    home = getattr(value, "__module__", "") if is_code and name else package
    if not str(home).startswith("dpjax"):  # a value, or a name of another library
        home = package
    file = inspect.getsourcefile(importlib.import_module(home))
    return Path(str(file)).resolve().relative_to(ROOT).as_posix()


def add_edit_url(app, pagename, templatename, context, doctree) -> None:
    """Has a page's button lead to its source; the theme assumes a file under docs."""
    del app, templatename
    theirs = context.get("get_edit_provider_and_url")
    if theirs is None or doctree is None:
        return
    assumed = f"docs/{pagename}{context.get('page_source_suffix')}"

    def get_edit_provider_and_url():
        provider, url = theirs()
        return provider, url.replace(assumed, source(pagename))

    context["get_edit_provider_and_url"] = get_edit_provider_and_url
