"""A table of adapters: functions and classes that call dpjax, by names of peers."""

from collections.abc import Callable
from typing import Any

import pytest

ADAPTERS: dict[str, Any] = {}  # by the peer's full name
absent = pytest.skip  # ends a case that asks for something without a counterpart


def stands_for(name: str) -> Callable:
    """Enters a function or class as the adapter of a peer's name."""

    def enter(adapter):
        ADAPTERS[name] = adapter
        return adapter

    return enter
