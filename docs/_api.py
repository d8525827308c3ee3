"""Pages of the API, written from `__all__` of every public package."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dpjax

_MARKUP = re.compile(r"([\\*|]|_(?=\W|$))")  # of reStructuredText
_CODE = re.compile(r"`([^`\n]+)`")


def packages() -> list[ModuleType]:
    """Returns dpjax and its public packages: those that have `__all__`."""
    modules = [
        importlib.import_module(f"dpjax.{module.name}")
        for module in pkgutil.iter_modules(dpjax.__path__)
        if module.name != "cli" and not module.name.startswith("_")
    ]
    return [dpjax, *(module for module in modules if hasattr(module, "__all__"))]


def names(package: ModuleType) -> list[str]:
    """Returns the public names of a package that are no modules."""
    return [x for x in package.__all__ if not inspect.ismodule(getattr(package, x))]


def home(package: ModuleType, name: str) -> str:
    """Returns the package of a name's page: that of its code, if public there."""
    module = getattr(getattr(package, name), "__module__", None) or ""
    owner = ".".join(module.split(".")[:2])
    is_public = owner.startswith("dpjax.") and not owner.startswith("dpjax._")
    known = importlib.import_module(owner) if is_public else package
    return owner if is_public and name in known.__all__ else package.__name__


def write_pages(folder: Path) -> None:
    """Writes a page a package and a page a name; pages of names that went go."""
    texts = {}
    for package in packages():
        texts[f"{package.__name__}.rst"] = page(package)
        for name in names(package):
            if home(package, name) == package.__name__:
                path = f"{package.__name__}/{name}.rst"
                texts[path] = name_page(package, name)
    for path in folder.rglob("*.rst"):
        if path.relative_to(folder).as_posix() not in texts:
            path.unlink()
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def page(package: ModuleType) -> str:
    """Returns the page of a package: its docstring, and a table of its names."""
    title = package.__name__
    head = f"{title}\n{'=' * len(title)}\n\n.. automodule:: {title}\n\n"
    full = (f"{home(package, name)}.{name}" for name in names(package))
    rows = "\n".join(f"   ~{name.removeprefix(f'{title}.')}" for name in full)
    table = f".. autosummary::\n   :nosignatures:\n\n{rows}\n" if rows else ""
    return head + table


def name_page(package: ModuleType, name: str) -> str:
    """Returns the page of a name, which no menu has: a package's table leads there."""
    value, full = getattr(package, name), f"{package.__name__}.{name}"
    back = f"In :doc:`{package.__name__} <../{package.__name__}>`."
    if inspect.isclass(value):
        entry = f".. autoclass:: {full}"
        for method in _methods(value):
            is_property = isinstance(inspect.getattr_static(value, method), property)
            kind = "autoproperty" if is_property else "automethod"
            entry += f"\n\n   .. {kind}:: {method}"
    elif callable(value) and hasattr(value, "__name__"):
        entry = f".. autofunction:: {full}"
    else:
        entry = f".. autodata:: {full}\n   :no-value:"
    head = f":orphan:\n\n{name}\n{'=' * len(name)}\n\n{back}\n\n"
    return f"{head}.. currentmodule:: {package.__name__}\n\n{entry}\n"


def targets() -> dict[str, str]:
    """Returns the full name of each name by which a docstring may call it.

    A name may stand without its package where only one package has it and it is no
    plain word, which could be an argument's.
    """
    known, short = {package.__name__: package.__name__ for package in packages()}, {}
    for package in packages():
        for name in names(package):
            value, full = getattr(package, name), f"{home(package, name)}.{name}"
            methods = _methods(value) if inspect.isclass(value) else ()
            for end in ("", *(f".{method}" for method in methods)):
                known[f"{package.__name__}.{name}{end}"] = full + end
                if "_" in name or not name.islower():
                    short.setdefault(name + end, set()).add(full + end)
    known |= {name.removeprefix("dpjax."): full for name, full in known.items()}
    return known | {name: x.pop() for name, x in short.items() if len(x) == 1}


def _methods(cls: type) -> list[str]:
    """Returns the methods that are documented in dpjax, and by no public base."""
    names = (name for name in dir(cls) if name[0] != "_" or name == "__call__")
    return [name for name in names if _is_documented(cls, name)]


def _is_documented(cls: type, name: str) -> bool:
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    value: Any = inspect.getattr_static(owner, name)
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if inspect.isclass(function) or not callable(function):
        return False
    package = importlib.import_module(".".join(owner.__module__.split(".")[:2]))
    is_public = owner.__name__ in getattr(package, "__all__", ())
    is_ours = getattr(function, "__module__", "").startswith("dpjax.")
    return (
        is_ours and bool(inspect.getdoc(function)) and (owner is cls or not is_public)
    )


def as_rst(lines: list[str], target: Callable[[str], str | None]) -> list[str]:
    """Returns a docstring, plain text with code in backticks, in reStructuredText.

    A block after an empty line that is further indented is a formula or code.

    Args:
        lines: of the docstring.
        target: from code in backticks to the public name that it is, if it is one.
    """

    def converted(line: str) -> str:
        if line.count("`") % 2:
            return line  # code that goes on in another line
        bullet = re.match(r"\s*\* ", line)
        head = bullet[0] if bullet else ""
        parts = _CODE.split(line[len(head) :])
        parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
        for i, code in enumerate(parts[1::2]):
            full = target(code)
            parts[2 * i + 1] = f":py:obj:`{code} <{full}>`" if full else f"``{code}``"
        return head + "".join(parts)

    result: list[str] = []
    block = previous = None  # indentation of a block, and of the last line of text
    in_doctest = False
    for line, before in zip(lines, ["x", *lines], strict=False):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not text:
            in_doctest = False
        else:
            block = None if block is not None and indent < block else block
            if text.startswith(">>>") and block is None:
                in_doctest, previous = True, indent
            if block is None and not in_doctest:
                if not before.strip() and previous is not None and indent > previous:
                    block = indent
                    result += [" " * previous + "::", ""]
                else:
                    line, previous = converted(line), indent
        result.append(line if text else "")
    return result
