"""Columns of text, with numbers that are parsed once, and the formats of numbers.

No cell raises an error, and the value of a cell depends on that cell alone.
"""

import functools
import importlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpjax import _validate


class _Polars:
    """Stands for the package polars, which is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("polars"), name)


pl: Any = _Polars()
UNDECODED = "\ufffd"  # the replacement for bytes that do not decode
# People write these texts for a missing value.
_MARKS = {*("", "na", "n/a", "#n/a", "nan", "nat", "<na>", "null", "none", "?", "-")}
_MARKS |= {"--", "."}
_NEVER = {"", "nan", "nat", "<na>"}  # missing even if a schema lists them
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUTH = {"true": 1.0, "false": 0.0}
_SEPARATORS = {" ": "[ \u00a0\u202f]", "'": "['\u2019]", ".": r"\.", ",": ","}


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """The form in which a text file writes records and numbers.

    Args:
        quoted: whether cells in quotes may have line ends (RFC 4180).
        skip_lines: number of lines above the header.
        last_lines: number of lines at the end that are no records, such as sums.
        row_names: whether lines begin with a cell that has no name in the header.
        encoding: the encoding of the file. None: UTF-16 if the file begins as UTF-16
            does, else UTF-8.
        decimal: the character before the fraction of a number, "." or ",".
        thousands: the character between groups of three digits: one of . , ' and a
            blank. None: groups are not separated.
        currency: text that numbers may have before or after them.
        percent: whether numbers may have a percent sign after them: 12% is 0.12.
        dates: columns that may have a type of times in a Parquet or NPZ file.

    Raises:
        ValueError: If an argument has another value.
    """

    quoted: bool = False
    skip_lines: int = 0
    last_lines: int = 0
    row_names: bool = False
    encoding: str | None = None
    decimal: str = "."
    thousands: str | None = None
    currency: str | None = None
    percent: bool = False
    dates: Collection[str] = ()

    def __post_init__(self) -> None:
        """Checks each argument; errors name the option of the command line."""
        decimal, mark, currency = self.decimal, self.thousands, self.currency
        is_point = decimal in (".", ",")
        _validate.require(is_point, "--decimal", decimal, "a point or a comma")
        is_mark = mark is None or (mark in _SEPARATORS and mark != decimal)
        rule = "a point, a comma, an apostrophe or a blank, and not as --decimal"
        _validate.require(is_mark, "--thousands", mark, rule)
        is_sign = currency is None or bool(re.fullmatch(r"[^\s0-9.,'+-]+", currency))
        rule = "a sign or a word, such as $ or EUR, without blanks, digits or . , ' + -"
        _validate.require(is_sign, "--currency", currency, rule)
        is_encoding = self.encoding is None or _is_encoding(self.encoding)
        rule = "a text encoding that Python knows, such as latin-1 or utf-16"
        _validate.require(is_encoding, "--encoding", self.encoding, rule)

    @property
    def has_plain_numbers(self) -> bool:
        """Returns whether numbers are written as in Python."""
        marks = self.thousands, self.currency, self.percent
        return self.decimal == "." and not any(marks)

    def plain(self, cells: Any) -> Any:
        """Returns texts (polars series) with numbers in Python's notation, to cast."""
        # So 1.234,5 becomes 1234.5, and other texts null; a plain format changes none.
        if self.has_plain_numbers:
            return cells
        mark = re.escape(self.currency) if self.currency else ""
        whole_part = "[0-9]*"
        if self.thousands:
            between = _SEPARATORS[self.thousands]
            whole_part = f"[0-9]{{1,3}}(?:{between}[0-9]{{3}})+|[0-9]*"
        blank = "[ \u00a0\u202f]?"
        percent = f"|{blank}%" if self.percent else ""
        parts = cells.str.extract_groups(
            rf"^([+-]?){blank}(?:{mark})?{blank}([+-]?)({whole_part})"
            rf"(?:{re.escape(self.decimal)}([0-9]*))?([eE][+-]?[0-9]+{percent})?"
            rf"{blank}(?:{mark})?$"
        ).struct.unnest()
        signs, digits = parts["1"] + parts["2"], parts["3"]
        if self.thousands:
            digits = digits.str.replace_all(_SEPARATORS[self.thousands], "")
        fraction, power = parts["4"].fill_null(""), parts["5"].fill_null("")
        power = power.str.replace("^.?%$", "e-2")
        return (signs + digits + pl.Series(["."]) + fraction + power).cast(pl.String)


PLAIN = TextFormat()


class Texts:
    """A column of strings, shape (n,): numbers and distinct texts are computed once.

    Args:
        cells: a polars series of strings; null becomes "". Blanks around texts are
            removed.
        text_format: how numbers are written.
        is_number: whether the column's type declares numbers, so that the category "01"
            is the number 1.
    """

    ndim = 1
    dtype = np.dtype(object)

    def __init__(
        self, cells: Any, text_format: TextFormat = PLAIN, *, is_number: bool = False
    ):
        self.cells = cells.fill_null("").str.strip_chars().rechunk()
        self.text_format = text_format
        self.is_number = is_number

    @classmethod
    def of(cls, cells: Iterable[Any], text_format: TextFormat = PLAIN) -> "Texts":
        """Returns a column of the texts of any objects."""
        texts = (text_of(cell).encode("utf-8", "replace") for cell in cells)
        series = pl.Series([text.decode() for text in texts], dtype=pl.String)
        return cls(series, text_format)

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def shape(self) -> tuple[int]:
        """The shape (n,) of the column."""
        return (len(self),)

    def __getitem__(self, index: np.ndarray | slice) -> "Texts":
        rows = np.arange(len(self), dtype=np.uint32)[index]
        cells = self.cells.gather(rows)
        return Texts(cells, self.text_format, is_number=self.is_number)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.array(self.tolist(), dtype=dtype or object)

    def tolist(self) -> list[str]:
        """Returns the texts."""
        return self.cells.to_list()

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """The cells in float64, NaN where a cell holds no finite number."""
        numbers = self.text_format.plain(self.cells).cast(pl.Float64, strict=False)
        # The cast reads most cells. Texts that it does not read are parsed one by one.
        rest = numbers.is_null().arg_true()
        values = numbers.fill_null(np.nan).to_numpy(writable=True)
        if len(rest):
            is_plain = self.text_format.has_plain_numbers
            parse = _number_of_text if is_plain else truth_of
            texts, codes = Texts(self.cells.gather(rest)).distinct
            parsed = np.fromiter(map(parse, texts), np.float64, len(texts))
            values[rest.to_numpy()] = parsed[codes]
        values[~np.isfinite(values)] = np.nan
        return values

    @functools.cached_property
    def distinct(self) -> tuple[list[str], np.ndarray]:
        """The distinct texts, and the index of each cell's text, shape (n,)."""
        texts = self.cells.unique(maintain_order=True)
        places = pl.Series(range(len(texts)), dtype=pl.Int64)
        codes = self.cells.replace_strict(texts, places, return_dtype=pl.Int64)
        return texts.to_list(), codes.cast(pl.Int64).to_numpy()

    def parts(self) -> Iterator[bytes]:
        """Yields bytes that determine the cells, for a digest."""
        yield self.cells.str.len_bytes().to_numpy().tobytes()
        yield "".join(self.tolist()).encode()


def numbers_of(column: np.ndarray | Texts) -> np.ndarray:
    """Returns a column in float64, for `Numeric`, NaN where no finite number stands."""
    if isinstance(column, Texts):
        return column.numbers
    numbers = floats_of(column)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def floats_of(cells: np.ndarray) -> np.ndarray:
    """Returns cells (n,) of any type in float64, NaN where a cell holds no number."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    return np.fromiter(map(number_of, cells.tolist()), np.float64, len(cells))


def float32_of(column: np.ndarray | Texts) -> np.ndarray:
    """Returns a column in float32, NaN where `Numeric` finds no number."""
    with np.errstate(over="ignore"):
        numbers = numbers_of(column).astype(np.float32)
    return np.where(np.isfinite(numbers), numbers, np.float32(np.nan))


def number_of(cell: Any) -> float:
    """Returns the number in a cell of any type, or NaN; no cell raises an error."""
    if isinstance(cell, str | bytes):
        return _number_of_text(text_of(cell))
    # From arrays and complex numbers NumPy would take a part, with a warning.
    try:
        if getattr(cell, "ndim", 0) > 0 or isinstance(cell, np.complexfloating):
            return np.nan
        return float(cell)
    except Exception:  # whatever a cell is, it must not raise
        return np.nan


def text_of(cell: Any) -> str:
    """Returns the text by which a cell is compared, stripped; no cell ever raises."""
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace").strip()
    try:
        return str(cell).strip()
    except Exception:  # an integer has too many digits, or an object has no text
        return f"<{type(cell).__name__}>"


def is_mark(text: str) -> bool:
    """Returns whether a text means a missing value unless a schema lists it."""
    return text.lower() in _MARKS or UNDECODED in text


def is_missing(text: str) -> bool:
    """Returns whether a text means a missing value, even if a schema lists it."""
    return text.lower() in _NEVER or UNDECODED in text


def truth_of(text: str) -> float:
    """Returns 1 for true, 0 for false, in any capitalization, else NaN."""
    return _TRUTH.get(text.strip().lower(), np.nan)


def _number_of_text(text: str) -> float:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else truth_of(text)


def _is_encoding(name: str) -> bool:
    """Returns whether an encoding writes line breaks as ASCII or as UTF-16 does."""
    try:
        encoded = "a,1\n".encode(name)
    except (LookupError, UnicodeError):
        return False
    is_wide = re.fullmatch(r"utf[-_]?(8[-_]sig|16([-_]?[lb]e)?)", name.lower())
    return encoded == b"a,1\n" or is_wide is not None
