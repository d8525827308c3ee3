"""Reads a user's CSV, Parquet or NPZ file, or a data frame, into columns.

Names, types and the number of records are public. No value of a cell raises, and none
changes another record: what a record of a CSV file is, is said by `dpjax._csv`.
"""

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpjax import _csv, _validate
from dpjax._texts import PLAIN, TextFormat, Texts

Column = np.ndarray | Texts


def column_names(path: Path, text_format: TextFormat = PLAIN) -> list[str]:
    """Returns the names of a file's columns; no record is looked at.

    Raises:
        ValueError: if the file is of no known kind, cannot be read, or names a column
            twice.
    """
    read_names, _ = _readers(path)
    with _readable(path):
        names = read_names(path, text_format)
    twice = sorted({name for name in names if names.count(name) > 1})
    _validate.require(len(names) > 0, "DATA", str(path), "a file with named columns")
    rule = f"a file whose columns have distinct names (not {twice} twice)"
    _validate.require(not twice, "DATA", str(path), rule)
    return names


def declared_kinds(path: Path) -> dict[str, str]:
    """Returns what the types of a Parquet file's columns say; no record is looked at.

    "number", "text", "truth", "time" or "nested". Other files declare nothing. The
    categories of an enumeration are not told: as a rule they were collected from the
    records.

    Raises:
        ValueError: if the file is of no known kind, or cannot be read.
    """
    _readers(path)
    if path.suffix.lower() != ".parquet":
        return {}
    kinds: dict[str, str] = {}
    with _readable(path), _polars() as pl:
        for name, kind in pl.read_parquet_schema(path).items():
            if kind == pl.Boolean:
                kinds[name] = "truth"
            elif kind.is_numeric():
                kinds[name] = "number"
            elif kind.is_temporal():
                kinds[name] = "time"
            elif kind in (pl.String, pl.Categorical, pl.Enum):
                kinds[name] = "text"
            elif kind.is_nested():
                kinds[name] = "nested"
    return kinds


def read_columns(
    path: Path,
    names: list[str],
    *,
    text_format: TextFormat = PLAIN,
    least: int = 1,
) -> dict[str, Column]:
    r"""Reads some columns of a file, each of shape (n,).

    Text becomes `Texts`, whole numbers of a Parquet file too, to the last digit;
    booleans are 0 and 1, and a missing number is NaN.

    Args:
        path: a text file with a header (UTF-8, UTF-16 or as the format says; commas,
            semicolons, tabs or bars, as the header has them; also compressed by gzip),
            a Parquet file, or an NPZ file with one array of shape (n,) a column.
        names: which columns; each must be among `column_names`.
        text_format: how text is encoded, and numbers are written.
        least: how many records there must be: 0 or 1.

    Raises:
        ValueError: if the file cannot be read, is written to meanwhile, its columns
            differ in length, hold neither text nor numbers, or have too few records.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "prices.csv")
        >>> _ = path.write_text('rooms,town,price\n3,"Ghent,\nB",250\n?,"Lier\n')
        >>> for name, column in read_columns(path, ["rooms", "town", "price"]).items():
        ...     print(name, column.tolist())
        rooms ['3', '?']
        town ['Ghent,\nB', '"Lier']
        price ['250', '']
    """
    _, read = _readers(path)
    with _readable(path):
        before = path.stat()
        columns = read(path, names, text_format)
        after = path.stat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise ValueError("it was written to while it was read")
    shapes = {name: column.shape for name, column in columns.items()}
    _validate.require(
        len(set(shapes.values())) == 1 and all(len(s) == 1 for s in shapes.values()),
        "DATA",
        shapes,
        f"made of columns of one shape (n,), in {path.name}",
    )
    for name, column in columns.items():
        _validate.require(
            isinstance(column, Texts) or column.dtype.kind in "biuf",
            "DATA",
            str(column.dtype),
            f"made of text or numbers, in column {name!r} of {path.name}",
        )
    _validate.require(
        len(next(iter(columns.values()))) >= least,
        "DATA",
        str(path),
        "a file with at least one record",
    )
    return columns


def frame_names(frame: Any) -> list[str]:
    """Returns the names of a data frame's columns, or of a mapping to arrays.

    Raises:
        ValueError: if it is neither.
    """
    names = frame if isinstance(frame, Mapping) else getattr(frame, "columns", ())
    _validate.require(
        len(names) > 0,
        "table",
        type(frame),
        "a data frame, a mapping of arrays, or the path of a file",
    )
    return list(names)


def frame_columns(frame: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Returns some columns of a data frame of pandas or polars, or of a mapping.

    Example:
        >>> frame_columns({"town": ["Ghent", None], "rooms": [3, 4]}, ["rooms"])
        {'rooms': array([3, 4])}
    """
    return {name: np.asarray(frame[name]) for name in names}


def _csv_names(path: Path, text_format: TextFormat) -> list[str]:
    return _csv.read_names(path, text_format.encoding)


def _read_csv(
    path: Path, names: list[str], text_format: TextFormat
) -> dict[str, Column]:
    found = _csv.read_texts(path, names, text_format.encoding)
    # One by one, so that no column is there twice for longer than it takes.
    return {name: Texts(found.pop(name), text_format) for name in names}


@contextlib.contextmanager
def _polars() -> Iterator[Any]:
    """Gives the module, which is of an extra, and turns its errors into one kind."""
    import polars

    try:
        yield polars
    except polars.exceptions.PolarsError as why:
        raise ValueError(str(why)) from None


def _parquet_names(path: Path, text_format: TextFormat) -> list[str]:
    with _polars() as pl:
        return list(pl.read_parquet_schema(path))


def _read_parquet(
    path: Path, names: list[str], text_format: TextFormat
) -> dict[str, Column]:
    with _polars() as pl:
        kinds = pl.read_parquet_schema(path)
        for name in names:
            kind = kinds.get(name)
            is_fine = kind in (pl.Categorical, pl.Enum, pl.String, pl.Binary, pl.Null)
            if not is_fine and kind != pl.Boolean and not (kind and kind.is_numeric()):
                raise ValueError(f"column {name!r} holds {kind}, not text or numbers")
        frame = pl.read_parquet(path, columns=names)
        return {name: _from_polars(pl, frame[name], text_format) for name in names}


def _from_polars(pl: Any, cells: Any, text_format: TextFormat) -> Column:
    kind = cells.dtype
    if kind.is_integer():  # as floats, large ones would not be told apart
        return Texts(cells.cast(pl.String), is_number=True)
    if kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        return cells.cast(pl.Float64, strict=False).to_numpy()
    if kind == pl.Binary:
        return Texts.of(cells.to_list(), text_format)
    return Texts(cells.cast(pl.String), text_format)


def _npz_names(path: Path, text_format: TextFormat) -> list[str]:
    with np.load(path, allow_pickle=False) as arrays:
        return list(arrays)


def _read_npz(
    path: Path, names: list[str], text_format: TextFormat
) -> dict[str, Column]:
    with np.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in names}
    return {
        name: Texts.of(array.tolist(), text_format)
        if array.dtype.kind in "SUT" and array.ndim == 1
        else array
        for name, array in found.items()
    }


_CSV = _csv_names, _read_csv
_READERS = {
    ".csv": _CSV,
    ".csv.gz": _CSV,
    ".tsv": _CSV,
    ".tsv.gz": _CSV,
    ".parquet": (_parquet_names, _read_parquet),
    ".npz": (_npz_names, _read_npz),
}


def _readers(path: Path) -> tuple[Callable, Callable]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = "".join(path.suffixes[-2:]).lower()
    _validate.require(
        path.is_file() and suffix in _READERS,
        "DATA",
        str(path),
        f"a file that exists and ends in {', '.join(_READERS)}",
    )
    return _READERS[suffix]


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what the readers raise about a file into one kind of error."""
    try:
        yield
    except (
        *(ValueError, KeyError, OSError, EOFError),
        *(zipfile.BadZipFile, zlib.error),
    ) as why:
        raise ValueError(
            f"DATA must be a readable file, got {str(path)!r}: {why}"
        ) from None
