"""A table of adapters: functions and classes that call dpjax, by names of peers."""

import types
from collections.abc import Callable
from typing import Any

import pytest

ADAPTERS: dict[str, Any] = {}  # by the peer's full name
USED: set[str] = set()  # names of adapters, since a case began
absent = pytest.skip  # ends a case that asks for something without a counterpart


def stands_for(name: str) -> Callable:
    """Enters a function or class as the adapter of a peer's name."""

    def enter(adapter):
        ADAPTERS[name] = adapter
        return adapter

    return enter


def patched(value: Any) -> Any:
    """Returns what a test file sees in the place of a module, function or class."""
    if isinstance(value, types.ModuleType):
        return _StandIn(value)
    full = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if full not in ADAPTERS:
        return value

    def call(*args, **options):
        if not full.startswith("numpy."):  # how figures are compared is no use of dpjax
            USED.add(full)
        return ADAPTERS[full](*args, **options)

    return call


class _StandIn(types.ModuleType):
    """A module as a test sees it, with adapters; dpjax itself uses the module."""

    def __init__(self, module):
        super().__init__(module.__name__)
        self.module = module

    def __getattr__(self, name):
        full = f"{self.__name__}.{name}"
        if full in ADAPTERS:
            USED.add(full)
        return ADAPTERS.get(full, getattr(self.module, name))
