"""Checks of values in files that may come from a stranger.

TOML and JSON hold values of any type, and integers of any length.
"""

import contextlib
import os
import re
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpjax import _validate

_FORMULA = re.compile(
    r"[=@\t\r]|[+-](?![+-]*$|[0-9.]|inf\b)|[+-].*([|!]|[A-Za-z]\()", re.DOTALL
)
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode


@contextlib.contextmanager
def well_formed(
    rule: str, path: str | os.PathLike[str], errors: Any = Exception
) -> Iterator[None]:
    """Turns `errors` of a block that reads the file at `path` into a `ValueError`.

    Readers of files raise errors of many types. The message begins with `rule`, which
    says what the file must be, and ends with the reader's own message.
    """
    try:
        yield
    except errors as why:
        text = f"{type(why).__name__}, {str(why).rstrip('.')}."
        raise ValueError(f"{rule}, got {str(path)!r}: {text}") from None


def toml_content(path: Path) -> dict[str, Any]:
    """Returns the content of a TOML file; a byte order mark may precede it.

    Raises `ValueError` if it is no TOML, or nested more deeply than Python can read.
    """
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def number(name: str, value: Any) -> float:
    """Returns the entry `name` of a file as a float; raises unless it is a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _validate.require(is_number, name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        rule = f"{name} must be a number that float64 holds"
        raise ValueError(f"{rule}, got an integer of 308 digits or more.") from None


def of_type(kind: type, name: str, value: Any) -> Any:
    """Returns `value` if it has the type `kind`, else raises `ValueError`."""
    _validate.require(isinstance(value, kind), name, value, f"a {kind.__name__}")
    return value


def printable(text: str) -> str:
    r"""Returns a text with all invisible and control characters escaped.

    A terminal obeys control characters: they move its cursor, rewrite lines, and change
    its title. Some other characters reverse the direction of text, or are invisible.

    Example:
        >>> print(printable("price\x1b[2J"))
        price\x1b[2J
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _UNSEEN
        else character
        for character in text
    )


def harmless(cell: str) -> str:
    """Returns a cell of a table that no spreadsheet runs as a formula.

    A cell that begins as a formula gets an apostrophe before it; numbers do not.

    Example:
        >>> [harmless(cell) for cell in ("=1+1", "-inf", "-", "-2+A1|'x'!B")]
        ["'=1+1", '-inf', '-', "'-2+A1|'x'!B"]
    """
    return f"'{cell}" if _FORMULA.match(cell) else cell
