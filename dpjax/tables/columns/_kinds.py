"""Kinds of columns, which have public constants and encode cells as features.

A schema has the public constants of each column: a center and a scale, or a list of
categories. Nothing is estimated from the data, and no value of a cell raises an error.
"""

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, ClassVar, Literal

import numpy as np

from dpjax import _validate
from dpjax.tables.io import _texts
from dpjax.tables.io._texts import Texts

_MOST_DIGITS = 300  # float's largest number has 309
ISO = "%Y-%m-%d"
# A date in this format may have a time after it, which is left out.
_ISO_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ].*)?")
# Programs write a whole number as 1, 1.0, 1.0e+00 or 1e+05, but 01234 and 1E5 are
# codes, which are compared as texts.
_PLAIN_NUMBER = re.compile(
    r"([+-]?(?:0|[1-9][0-9]*))(?:(\.0?)|(?:\.[0-9]*[eE]|e)[+-][0-9]{2,3})?"
)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, standardized by public constants.

    The feature is (x - center) / scale, clipped to [-limit, limit]. A cell that is
    missing, does not parse, is NaN or infinite, or leaves the range of float32 becomes
    0, as if it lay at the center.

    Args:
        center: the value that becomes 0, in units of the column.
        scale: the distance that becomes 1, in units of the column, positive.
        limit: the largest |feature|, in scales from the center, positive; inf for no
            limit.

    Raises:
        ValueError: If the center is not finite, the scale not positive and finite, or
            the limit not positive.

    Example:
        >>> import numpy as np
        >>> Numeric(center=40, scale=10).encode(np.array(["50", "?"])).tolist()
        [[1.0], [0.0]]
        >>> Numeric(40, 10, limit=2.0).encode(np.array(["50", "99"])).tolist()
        [[1.0], [2.0]]
    """

    center: float = 0.0
    scale: float = 1.0
    limit: float = math.inf
    categories: ClassVar[tuple[str, ...]] = ()  # so that all kinds have the field
    reference: ClassVar[None] = None

    def __post_init__(self) -> None:
        _validate.within(-sys.float_info.max, sys.float_info.max, center=self.center)
        _validate.positive(scale=self.scale)
        _validate.above_zero(limit=self.limit)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest number in units of the column; inf without limit."""
        reach = self.scale * self.limit
        low, high = self.center - reach, self.center + reach
        return (low, high) if reach < math.inf else (-math.inf, math.inf)

    def declared(self) -> dict[str, Any]:
        """Returns the constants for JSON; an infinite limit is left out."""
        known = {"center": float(self.center), "scale": float(self.scale)}
        return known | ({"limit": float(self.limit)} if self.limit < math.inf else {})

    def names(self, column_name: str) -> tuple[str, ...]:
        """Returns the name of the column's single feature."""
        return (column_name,)

    def text(self) -> str:
        """Returns the center and the scale, as a table of columns shows them."""
        return f"{self.center:g} by {self.scale:g}"

    def numbers(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns cells (n,) in float64, NaN where no finite number stands."""
        return _texts.numbers_of(column)

    def is_read(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns which cells hold a finite number, shape (n,)."""
        return np.isfinite(_texts.float32_of(self.numbers(column)))

    def encode(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns the column as float32 of shape (n, 1)."""
        _require_column(column)
        with np.errstate(over="ignore", invalid="ignore"):
            standardized = (self.numbers(column) - self.center) / self.scale
            feature = standardized.astype(np.float32)
        feature[~np.isfinite(feature)] = 0.0
        return np.clip(feature, -self.limit, self.limit)[:, None]


Part = Literal["days", "year", "month", "weekday"]
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
# The parts of a date that are categories, and their levels.
LEVELS = {"month": (*map(str, range(1, 13)),), "weekday": (*_WEEKDAYS.split(),)}


@dataclass(frozen=True)
class Date(Numeric):
    """A column of dates, as numbers of days since the first, or as years.

    A number is held within those of two public dates, such as "2015-01-31". The center
    is halfway between them, and they are two scales from it. A cell without a date
    counts as the center. `format` says how cells are written, in the codes of Python's
    `strptime`; the default also reads a date that a time follows. `part` is "days" or
    "year". Raises `ValueError` unless the dates are in order, with different numbers.

    Example:
        >>> import numpy as np
        >>> kind = Date("2020-01-01", "2020-12-31", "%d.%m.%Y")
        >>> cells = np.array(["31.01.2020", "31.02.2020", "1.1.2030"], object)
        >>> kind.numbers(cells).tolist(), kind.encode(cells)[:, 0].tolist()[1:]
        ([30.0, nan, 3653.0], [0.0, 2.0])
    """

    center: float = field(init=False, repr=False)
    scale: float = field(init=False, repr=False)
    limit: float = field(init=False, repr=False)
    first: str
    last: str
    format: str = ISO
    part: Part = "days"

    def __post_init__(self) -> None:
        ends = self.numbers(np.array([self.first, self.last], object), ISO)
        rule = f'dates such as "2015-01-31", the second with a later {self.part}'
        is_fine = self.part in ("days", "year") and ends[0] < ends[1]  # no NaN
        _validate.require(is_fine, "first and last", (self.first, self.last), rule)
        known = {"center": ends.mean(), "scale": np.ptp(ends) / 4, "limit": 2.0}
        for name, value in known.items():
            object.__setattr__(self, name, float(value))

    @property
    def unit(self) -> str:
        """The unit of numbers, in words."""
        return f"days since {self.first}" if self.part == "days" else "year"

    def declared(self) -> dict[str, Any]:
        """Returns the constants for JSON."""
        return {x: getattr(self, x) for x in ("first", "last", "format", "part")}

    def names(self, column_name: str) -> tuple[str, ...]:
        """Returns the name of the column's single feature, with its unit."""
        return (f"{column_name} ({self.unit})",)

    def text(self) -> str:
        """Returns the range, as a table of columns shows it."""
        return f"{self.first} to {self.last}, {self.part}"

    def numbers(self, column: np.ndarray | Texts, format: str = "") -> np.ndarray:
        """Returns days since the first date, or years, in float64; NaN for no date."""
        dates = _dates(column, format or self.format)
        if self.part == "year":
            known = dates.astype("datetime64[Y]").astype(float) + 1970
        else:
            known = (dates - _dates(np.array([self.first]), ISO)).astype(float)
        return np.where(np.isnat(dates), np.nan, known)


@dataclass(frozen=True)
class BoundedColumn:
    """A column of amounts from zero to a public maximum: an exposure, or a weight.

    Args:
        column: the name of the column.
        max: the largest amount, positive, public.

    Raises:
        ValueError: If the maximum is not positive and finite.

    Example:
        >>> import numpy as np
        >>> years = BoundedColumn("years", 2.0)
        >>> years.shares(np.array(["1", "9", "-1", "?", ""])).tolist()
        [0.5, 1.0, 0.0, 0.0, 0.0]
    """

    column: str
    max: float
    categories: ClassVar[tuple[str, ...]] = ()
    reference: ClassVar[None] = None

    def __post_init__(self) -> None:
        _validate.positive(max=self.max)

    def is_read(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns which cells hold a finite number of at least zero, shape (n,)."""
        known = _texts.float32_of(column)
        return np.asarray(np.isfinite(known) & (known >= 0), bool)

    def shares(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns cells (n,) over the maximum, clipped to [0, 1]; odd cells are 0."""
        return np.clip(Numeric(scale=self.max).encode(column)[:, 0], 0.0, 1.0)


@dataclass(frozen=True)
class Categorical:
    """A column of categories, one-hot over a public list.

    Cells are compared as text without surrounding blanks. Whole numbers and booleans
    are compared by value, to the last digit: 1, "1", "1.0", True and "true" are one
    category. Other texts are codes, such as "01", or "250.1" beside "250.10", except in
    a column of numbers, where all categories are numbers. A cell that is not listed
    becomes a row of zeros, and so does a missing cell: None, NaN, NA, NaT or blank.

    Args:
        categories: the public list, distinct.
        reference: the listed category without a feature, with which a model compares
            the others. None: each listed category has a feature.

    Raises:
        ValueError: If the list is empty, names a category twice, or names a missing
            value; or if the reference is not in it, or alone.

    Example:
        >>> import numpy as np
        >>> Categorical(("no", "yes")).encode(np.array(["yes", " no", "?"])).tolist()
        [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
        >>> Categorical(("no", "yes"), "no").encode(np.array(["yes", "no"])).tolist()
        [[1.0], [0.0]]
        >>> Categorical(("1",)).encode(np.array(["1.0e+00", "true", "01"])).tolist()
        [[1.0], [1.0], [0.0]]
    """

    categories: tuple[str, ...]
    reference: str | None = None
    center: ClassVar[float] = 0.0  # features are 0 or 1, as they are encoded
    scale: ClassVar[float] = 1.0
    limit: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        keys = set(map(_category, self.categories))
        is_fine = len(keys) == len(self.categories) > 0 and None not in keys
        rule = "a list of distinct names, at least one, none blank or NaN"
        _validate.require(is_fine, "categories", self.categories, rule)
        is_fine = self.reference in (None, *self.categories) and len(self.encoded) > 0
        rule = f"one of two or more categories ({', '.join(self.categories)}), or None"
        _validate.require(is_fine, "reference", self.reference, rule)

    @property
    def encoded(self) -> tuple[str, ...]:
        """The categories with a feature, in order: all but the reference."""
        return tuple(x for x in self.categories if x != self.reference)

    def declared(self) -> dict[str, Any]:
        """Returns the list for JSON, and the reference if there is one."""
        known: dict[str, Any] = {"categories": [*map(str, self.categories)]}
        return known | ({"reference": self.reference} if self.reference else {})

    def names(self, column_name: str) -> tuple[str, ...]:
        """Returns the names of the features, one for each encoded category."""
        return tuple(f"{column_name}={category}" for category in self.encoded)

    def weights(self, of_features: np.ndarray) -> np.ndarray:
        """Returns each category's weight (m,) or (m, K), from its feature's; or 0."""
        known = dict(zip(self.encoded, of_features, strict=False))
        nothing = np.zeros(np.shape(of_features)[1:])
        return np.array([known.get(x, nothing) for x in self.categories], np.float64)

    def is_read(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns which cells hold a listed category, shape (n,)."""
        return self.indices(column) >= 0

    def encode(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns the one-hot column, (n, encoded); zeros for other cells."""
        places = [*map(self.categories.index, self.encoded)]
        return (self.indices(column)[:, None] == places).astype(np.float32)

    def indices(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns the index of each cell's category, (n,); -1 for other cells."""
        _require_column(column)
        if isinstance(column, Texts):
            cells, codes = column.distinct
            has_numbers = column.is_number
        else:
            cells, codes = column.tolist(), slice(None)
            has_numbers = column.dtype.kind in "biuf"
        as_key = _number_of_category if has_numbers else _category
        position = {as_key(name): index for index, name in enumerate(self.categories)}
        places = (position.get(as_key(cell), -1) for cell in cells)
        return np.fromiter(places, np.int64, len(cells))[codes]


@dataclass(frozen=True)
class DatePart(Categorical):
    """A column of dates as months or days of the week, from `date_kind`."""

    format: str = ISO
    part: Part = "month"

    def declared(self) -> dict[str, Any]:
        """Returns format, part and reference for JSON."""
        return {x: getattr(self, x) for x in ("format", "part", "reference")}

    def indices(self, column: np.ndarray | Texts) -> np.ndarray:
        """Returns the index of each cell's month or day, (n,); -1 for no date."""
        dates = _dates(column, self.format)
        if self.part == "month":
            places = dates.astype("datetime64[M]").astype(np.int64) % 12
        else:  # 1970-01-01 was a Thursday
            places = (dates.astype(np.int64) + 3) % 7
        return np.where(np.isnat(dates), -1, places)


def date_kind(
    first: str | None = None,
    last: str | None = None,
    format: str = ISO,
    part: str = "days",
    reference: str | None = None,
) -> Date | DatePart:
    """Returns the kind of a column of dates; raises `ValueError` if it is none.

    Example:
        >>> import numpy as np
        >>> cells = np.array(["2024-02-29", "2024-02-30", "2024-12-01"])
        >>> date_kind(part="month").indices(cells).tolist()
        [1, -1, 11]
    """
    given: Any = part
    _validate.choice(Part, part=given)
    example, rule = date(2001, 2, 28), f"one with year, month and day, such as {ISO}"
    written = np.array([example.strftime(format)], object)
    is_fine = _dates(written, format)[0] == np.datetime64(example)
    _validate.require(bool(is_fine), "format", format, rule)
    ends, is_number = (first, last), part not in LEVELS
    is_fine = None not in ends and reference is None if is_number else not any(ends)
    rule = "given for days and years, without reference, and left out for months and "
    _validate.require(is_fine, "first and last", ends, f"{rule}days of the week")
    if is_number:
        return Date(str(first), str(last), format, given)
    levels = LEVELS[part]
    return DatePart(levels, reference or levels[0], format, given)


def is_date(kind: Any) -> bool:
    """Returns whether a column of this kind holds dates."""
    return isinstance(kind, Date | DatePart)


def dates_of(kinds: Mapping[str, Any]) -> set[str]:
    """Returns the names of columns that are declared to hold dates."""
    return {name for name, kind in kinds.items() if is_date(kind)}


def _dates(column: np.ndarray | Texts, format: str) -> np.ndarray:
    """Returns cells as dates, datetime64[D] of shape (n,), NaT where none is."""
    if isinstance(column, Texts):
        cells, codes = column.distinct
    else:
        cells, codes = column.tolist(), slice(None)
    days = (_date_of(_texts.text_of(cell), format) for cell in cells)
    return np.array([*days], "datetime64[D]")[codes]


def _date_of(text: str, format: str) -> date | None:
    try:
        if format == ISO:
            known = _ISO_DATE.fullmatch(text)
            return known and date.fromisoformat(known[1])
        return datetime.strptime(text, format).date()
    except Exception:  # whatever a cell is, it must not raise
        return None


def labels_of(kind: Numeric | Categorical | BoundedColumn) -> list[str]:
    """Returns a column's categories as tables show them: the reference has a mark."""
    mark = {kind.reference: f"{kind.reference} (reference)"}
    return [mark.get(category, category) for category in kind.categories]


def encode(
    columns: Mapping[str, np.ndarray | Texts],
    schema: Mapping[str, Numeric | Categorical],
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encodes the columns that the schema names, in its order, as features of a model.

    Args:
        columns: arrays of shape (n,), of text or numbers, by name.
        schema: the public constants of each column to encode. Columns that it does not
            name are ignored.

    Returns:
        The features, float32 of shape (n, d), and the names of the d features.

    Raises:
        ValueError: If the schema is empty or names a missing column, or if a column is
            not one-dimensional, differs in length, or has neither text nor numbers.

    Example:
        >>> import numpy as np
        >>> columns = {"age": np.array([30, 50]), "smokes": np.array(["no", "yes"])}
        >>> schema = {"age": Numeric(40, 10), "smokes": Categorical(("yes",))}
        >>> features, names = encode(columns, schema)
        >>> features.tolist(), names
        ([[-1.0, 0.0], [1.0, 1.0]], ('age', 'smokes=yes'))
    """
    _validate.require(len(schema) > 0, "schema", schema, "of one column or more")
    missing = [name for name in schema if name not in columns]
    rule = f"a mapping from names of columns ({list(columns)})"
    _validate.require(not missing, "schema", missing, rule)
    shapes = {name: np.shape(columns[name]) for name in schema}
    _validate.require(len({*shapes.values()}) == 1, "columns", shapes, "of one length")
    features = np.hstack([kind.encode(columns[name]) for name, kind in schema.items()])
    names = [feature for name, kind in schema.items() for feature in kind.names(name)]
    return features, tuple(names)


def _number_of_category(cell: Any) -> int | float | None:
    known = _category(cell)
    return _texts.number_of(cell) if isinstance(known, str) else known


def _category(cell: Any) -> int | float | str | None:
    """Returns the number or text by which cells are compared; None if missing."""
    # So 1, "1.0" and True are the same category, and "01" is another.
    text = _texts.text_of(cell)
    if _texts.is_missing(text):
        return None
    number = _PLAIN_NUMBER.fullmatch(text)
    if number is None or len(text) > _MOST_DIGITS:
        truth = _texts.truth_of(text)
        return truth if truth == truth else text
    if text == number[1] or number[2] is not None:
        return int(number[1])
    value = float(text)
    return value if value.is_integer() else repr(value)


def _require_column(column: Any) -> None:
    is_fine = isinstance(column, np.ndarray | Texts) and column.ndim == 1
    given = f"{type(column).__name__} of shape {np.shape(column)}"
    _validate.require(is_fine, "column", given, "a NumPy array of shape (n,)")
    is_fine = column.dtype.kind in "biufSUTO"
    _validate.require(is_fine, "column", column.dtype, "of text or numbers, not dates")
