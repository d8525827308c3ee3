"""Pages of the API, written from `__all__` of every public package."""

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import dpjax

# A program, which is used by commands.
_NO_PAGE = {"dpjax.cli"}


def packages() -> list[ModuleType]:
    """Returns dpjax and its public packages: those that have `__all__`."""
    found = [dpjax]
    for module in pkgutil.iter_modules(dpjax.__path__, "dpjax."):
        if module.name in _NO_PAGE or module.name.rpartition(".")[2][0] == "_":
            continue
        package = importlib.import_module(module.name)
        if hasattr(package, "__all__"):
            found.append(package)
    return found


def page_name(package: ModuleType) -> str:
    """Returns the name of a package's page, without folder and suffix."""
    return package.__name__


def write_pages(folder: Path) -> None:
    """Writes a page a package and a page a name, and the table of packages.

    What an earlier build wrote of other names goes.
    """
    found = packages()
    texts = {f"{page_name(package)}.rst": page(package) for package in found}
    for package in found:
        for name in _names(package):
            texts[f"{page_name(package)}/{name}.rst"] = name_page(package, name)
    for path in folder.rglob("*.rst"):
        if path.relative_to(folder).as_posix() not in texts:
            path.unlink()
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    lines = [
        f"| [{package.__name__}](generated/api/{page_name(package)}.rst) "
        f"| {_first_line(package)} |"
        for package in found
    ]
    table = "\n".join(["| package | what is in it |", "| --- | --- |", *lines])
    (folder.parent / "tables" / "packages.md").write_text(table + "\n")


def page(package: ModuleType) -> str:
    """Returns the page of a package: its docstring, and a table of its names."""
    name, here = package.__name__, _names(package)
    parts = [f"{name}\n{'=' * len(name)}", f".. automodule:: {name}"]
    elsewhere = [one for one in package.__all__ if one not in here]
    rows = [
        f"* - :py:obj:`{home(package, one)}.{one}`\n  - {_escaped(_first_line(value))}"
        for one in (*here, *elsewhere)
        if not inspect.ismodule(value := getattr(package, one))
    ]
    if rows:
        table = ".. list-table::\n   :widths: 40 60\n\n"
        parts.append(table + _indented("\n".join(rows)))
    if package is dpjax:
        parts.append("Its packages are on the page of the :doc:`API <../../api>`.")
    return "\n\n".join(parts) + "\n"


def name_page(package: ModuleType, name: str) -> str:
    """Returns the page of a name, which no menu has: a package's table leads there."""
    known = package.__name__
    back = f"In :doc:`{known} <../{page_name(package)}>`."
    heads = [":orphan:", f"{name}\n{'=' * len(name)}", back]
    parts = [*heads, f".. currentmodule:: {known}", _entry(package, name)]
    return "\n\n".join(parts) + "\n"


def targets() -> dict[str, str]:
    """Returns what a docstring may call a public name, a method or a package.

    Without its package it may where only one has the name, and that is no plain word,
    which could be an argument's.
    """
    found, short = {}, {}
    for package in packages():
        found[package.__name__] = package.__name__
        for name in package.__all__:
            value, full = getattr(package, name), f"{home(package, name)}.{name}"
            if inspect.ismodule(value):
                continue
            methods = _methods(value) if inspect.isclass(value) else ()
            for end in ("", *(f".{one}" for one in methods)):
                found[f"{package.__name__}.{name}{end}"] = full + end
                if "_" in name or not name.islower():
                    short.setdefault(name + end, set()).add(full + end)
    found |= {known.removeprefix("dpjax."): full for known, full in found.items()}
    return found | {one: full.pop() for one, full in short.items() if len(full) == 1}


def _names(package: ModuleType) -> list[str]:
    """Returns the names that are documented under the package."""
    return [
        name
        for name in package.__all__
        if home(package, name) == package.__name__
        and not inspect.ismodule(getattr(package, name))
    ]


def home(package: ModuleType, name: str) -> str:
    """Returns the public package a name is documented under.

    That is the deepest one that its code lies in, where it is public there too.
    """
    value = getattr(package, name)
    if inspect.ismodule(value):
        return package.__name__
    module = getattr(value, "__module__", "") or ""
    parts = module.split(".")
    owner = ".".join(parts[:2])
    is_private = owner.startswith("dpjax._")
    if owner != package.__name__ and owner.startswith("dpjax.") and not is_private:
        public = importlib.import_module(owner)
        if name in getattr(public, "__all__", ()):
            return owner
    return package.__name__


def _entry(package: ModuleType, name: str) -> str:
    value = getattr(package, name)
    full = f"{package.__name__}.{name}"
    if inspect.isclass(value):
        entry = [f".. autoclass:: {full}"]
        for one in _methods(value):
            is_property = isinstance(inspect.getattr_static(value, one), property)
            kind = "autoproperty" if is_property else "automethod"
            entry.append(f"   .. {kind}:: {one}")
        return "\n\n".join(entry)
    if callable(value) and hasattr(value, "__name__"):
        return f".. autofunction:: {full}"
    return f".. autodata:: {full}\n   :no-value:"


def _methods(cls: type) -> list[str]:
    """Returns the methods that are documented in dpjax, and by no public base."""
    found = []
    for name in dir(cls):
        if name[0] == "_" and name != "__call__":
            continue
        owner = next(base for base in cls.__mro__ if name in base.__dict__)
        is_public = owner is not cls and _is_public(owner)
        value: Any = inspect.getattr_static(owner, name)
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        is_code = callable(function) and not inspect.isclass(function)
        is_ours = getattr(function, "__module__", "").startswith("dpjax.")
        if is_ours and is_code and not is_public and inspect.getdoc(function):
            found.append(name)
    return found


def _is_public(cls: type) -> bool:
    owner = importlib.import_module(".".join(cls.__module__.split(".")[:2]))
    return cls.__name__ in getattr(owner, "__all__", ())


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
