"""Pages that are written: of the public API, and copies of the repository's pages."""

import importlib
import inspect
import os
import pkgutil
import re
import shutil
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

import dpjax

ROOT = Path(__file__).resolve().parents[1]
NAMES = "UTILITY", "UNTUNED", "DEEP", "FIGURES", "EXPERIMENTS", "SCALING", "COVERAGE"
NAMES = *(f"benchmarks/{x}" for x in (*NAMES, "CONFORMANCE")), "CHANGELOG"
NAMES = *NAMES, "CONTRIBUTING", "SECURITY"
PAGES = {f"{x}.md": f"{Path(x).name.lower()}.md" for x in (*NAMES, "dpjax/GUARANTEES")}
PAGES["benchmarks/README.md"] = "speed.md"
# An inline link of Markdown; titles and spaces in targets do not occur.
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def packages():
    """Returns dpjax and its public packages: those that have `__all__`."""
    names = (x.name for x in pkgutil.iter_modules(dpjax.__path__) if x.name[0] != "_")
    modules = (importlib.import_module(f"dpjax.{name}") for name in names)
    return [dpjax, *(module for module in modules if hasattr(module, "__all__"))]


def home(package, name):
    """Returns the package of a name's page, the last of those that have the object."""
    value = getattr(package, name)
    found = (x for x in packages() if name in x.__all__ and getattr(x, name) is value)
    return [x.__name__ for x in found][-1]


def write_api(folder):
    """Writes a page a package, with a table of its names, and a page a name.

    What an earlier version wrote beside the folder goes first.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    # A class has its methods, and those of bases that have no page of their own.
    classes = ",".join(x for one in packages() for x in one.__all__ if x[0].isupper())
    options = "   :members:\n   :special-members: __call__\n"
    options += f"   :inherited-members: {classes}\n"
    for package in packages():
        title, rows = package.__name__, ""
        (folder / title).mkdir(parents=True)
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.ismodule(value):
                continue
            owner = home(package, name)
            rows += f"   ~{f'{owner}.{name}'.removeprefix(f'{title}.')}\n"
            kind, end = "data", "   :no-value:\n"
            if inspect.isclass(value):
                kind, end = "class", options
            elif callable(value) and hasattr(value, "__name__"):
                kind, end = "function", ""
            if kind == "data":  # the docstring of a constant is a comment
                module = ModuleAnalyzer.for_module("dpjax._types")
                end += "\n   " + " ".join(module.find_attr_docs().get(("", name), []))
            text = f":orphan:\n\n{name}\n{'=' * len(name)}\n\n"
            text += f"In :doc:`{title} <../{title}>`.\n\n.. currentmodule:: {title}\n\n"
            if owner == title:
                text += f".. auto{kind}:: {title}.{name}\n{end}"
                (folder / title / f"{name}.rst").write_text(text)
        head = f"{title}\n{'=' * len(title)}\n\n.. automodule:: {title}\n\n"
        table = f".. autosummary::\n   :nosignatures:\n\n{rows}" if rows else ""
        (folder / f"{title}.rst").write_text(head + table)


def write_copies(folder):
    """Writes every page and notebook into a folder, their links as they are from there.

    A link to a file that becomes a page leads there, and of one to a folder only the
    words stay.
    """
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", dirs_exist_ok=True)
    for source, target in PAGES.items():

        def link(match, source=source):
            bang, words, target = match.groups()
            path, hash_, anchor = target.partition("#")
            if not path or re.match(r"[a-z]+:", path):
                return match[0]
            file = (ROOT / source).parent.joinpath(path).resolve(strict=True)
            name = file.relative_to(ROOT).as_posix()
            to = PAGES.get(name) or os.path.relpath(file, folder)
            words = "" if words == path and name in PAGES else words  # a page's title
            return words if file.is_dir() else f"{bang}[{words}]({to}{hash_}{anchor})"

        (folder / target).write_text(LINK.sub(link, (ROOT / source).read_text()))
