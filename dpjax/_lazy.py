"""Imports at first use: of names (PEP 562), because JAX takes a second; of extras."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package that imports on first use.

    `names` maps each module to the names imported from it, separated by blanks. The key
    `package` itself maps to the names of its modules.

    Example:
        >>> find, _ = lazily("dpjax.models", {"dpjax.tables.models._model": "Model"})
        >>> find("Model").__name__
        'Model'
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


@contextlib.contextmanager
def extra(name: str, user: str) -> Iterator[None]:
    """Adds how to install an optional extra to the error of an import in the block."""
    try:
        yield
    except ImportError as why:
        raise ImportError(f'{user}: pip install "dpjax[{name}]"') from why
