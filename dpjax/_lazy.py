"""Names and packages that are imported when first used, because JAX takes a second."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

try:
    VERSION = metadata.version("dpjax")
except metadata.PackageNotFoundError:  # a folder of files that was never installed
    VERSION = "0+unknown"


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package that imports on first use.

    `names` maps each module to the names imported from it, separated by blanks. The key
    `package` itself maps to the names of its modules.
    """
    sources = {name: path for path, listed in names.items() for name in listed.split()}

    def find(name: str) -> Any:
        """Imports a name, stores it in the package for the next use, and returns it."""
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path = sources[name]
        is_module = path == package
        value = import_module(f"{path}.{name}" if is_module else path)
        value = value if is_module else getattr(value, name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *sources})


def optional(name: str, need: str, extra: str) -> Any:
    """Returns an optional module, or raises `ImportError` with advice to install it."""
    try:
        return import_module(name)
    except ImportError as why:
        raise ImportError(f'{need}: pip install "dpjax[{extra}]"') from why


def to_frame(self: Any) -> Any:
    """Returns the numbers as a data frame of pandas or, without pandas, of polars.

    Each number, with its name and interval, has a row.

    Raises:
        ImportError: Without pandas and polars.
    """
    package = "polars" if find_spec("pandas") is None else "pandas"
    frames = optional(package, "a data frame needs pandas or polars", "experiments")
    names, lines = self._table()
    columns = zip(*lines, strict=True)
    return frames.DataFrame(dict(zip(names, map(list, columns), strict=True)))


def as_html(self: Any) -> str | None:
    """Returns the data frame of a result as HTML for a notebook; None: it has none."""
    below = f"<p>{escape(str(getattr(self, 'privacy', '')))}</p>"
    with suppress(ImportError):
        return to_frame(self)._repr_html_() + below
