"""Reads a user's CSV, Parquet or NPZ file, or a data frame, into columns.

Names, types and the number of records are public. No value of a cell raises, and none
changes another record: a line of a CSV file is a record, whatever is in it. (In the
usual reading, one stray quote swallows every line up to the next.) A cell with a line
break therefore needs Parquet or NPZ.
"""

import contextlib
import csv
import gzip
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from dpjax import _validate


def column_names(path: Path) -> list[str]:
    """Returns the names of a file's columns; no record is looked at.

    Raises:
        ValueError: if the file is of no known kind, cannot be read, or names a column
            twice.
    """
    read_names, _ = _readers(path)
    with _readable(path):
        names = read_names(path)
    _validate.require(
        len(names) > 0 and len(set(names)) == len(names),
        "DATA",
        str(path),
        f"a file whose columns have distinct names (they are {names})",
    )
    return names


def declared_kinds(path: Path) -> dict[str, str]:
    """Returns what the types of a Parquet file's columns say; no record is looked at.

    "number", "text", "truth" or "time". Other files declare nothing. The categories of
    an enumeration are not told: as a rule they were collected from the records.

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
    return kinds


def read_columns(
    path: Path, names: list[str], *, least: int = 1
) -> dict[str, np.ndarray]:
    r"""Reads some columns of a file, each into an array of shape (n,).

    Text stays text: `dpjax.datasets.encode` turns it into numbers. Booleans are 0 and
    1; a missing number is NaN.

    Args:
        path: a text file with a header (UTF-8 or UTF-16; commas, semicolons or tabs,
            as the header has them; also compressed by gzip), a Parquet file, or an NPZ
            file with one array of shape (n,) a column.
        names: which columns; each must be among `column_names`.
        least: how many records there must be: 0 or 1.

    Raises:
        ValueError: if the file cannot be read, its columns differ in length, hold
            neither text nor numbers, or have too few records.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "prices.csv")
        >>> _ = path.write_text('rooms,town,price\n3,"Ghent, B",250\n?,"Lier\n')
        >>> for name, column in read_columns(path, ["rooms", "town", "price"]).items():
        ...     print(name, column.tolist())
        rooms ['3', '?']
        town ['Ghent, B', 'Lier']
        price ['250', '']
    """
    _, read = _readers(path)
    with _readable(path):
        columns = read(path, names)
    shapes = {name: column.shape for name, column in columns.items()}
    _validate.require(
        len(set(shapes.values())) == 1 and all(len(s) == 1 for s in shapes.values()),
        "DATA",
        shapes,
        f"made of columns of one shape (n,), in {path.name}",
    )
    for name, column in columns.items():
        _validate.require(
            column.dtype.kind in "biufSUTO",
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


def read_cells(path: Path, name: str) -> list[Any]:
    """Returns one column's cells as they are, integers to the last digit.

    Raises:
        ValueError: as `read_columns`.
    """
    if path.suffix.lower() != ".parquet":
        return read_columns(path, [name], least=0)[name].tolist()
    with _readable(path), _polars() as pl:
        return pl.read_parquet(path, columns=[name])[name].to_list()


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


def text_of(cell: Any) -> str:
    """Returns a cell as text without blanks around it; no cell raises.

    Example:
        >>> text_of(b" Ghent"), text_of(None), text_of(10**5000)
        ('Ghent', '', '<int>')
    """
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace").strip()
    try:
        return str(cell).strip()
    except Exception:  # an integer of too many digits, or anything else
        return f"<{type(cell).__name__}>"


def _csv_names(path: Path) -> list[str]:
    with _opened(path) as file:
        header = next(_lines(file), "")
    return [name.strip() for name in _cells(header, _delimiter(header))]


def _read_csv(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Takes a line as a record; short lines are filled with empty cells."""
    header = _csv_names(path)
    positions = [header.index(name) for name in names]
    columns: list[list[str]] = [[] for _ in names]
    with _opened(path) as file:
        lines = _lines(file)
        delimiter = _delimiter(next(lines, ""))
        for line in lines:
            cells = _cells(line, delimiter)
            for column, position in zip(columns, positions, strict=True):
                column.append(cells[position] if position < len(cells) else "")
    return {
        name: np.array(column, dtype=object)
        for name, column in zip(names, columns, strict=True)
    }


def _opened(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def _lines(file: IO[bytes]) -> Iterator[str]:
    """Yields lines of UTF-8, or of UTF-16 where the header begins as that does.

    A line ends with the bytes of a line break, wherever they stand, and is decoded by
    itself: what is odd in one line, if only an odd number of bytes, stays in it.
    """
    first = file.readline()
    # Its mark, or a zero byte beside a letter.
    is_little = first[:2] == b"\xff\xfe" or first[1:2] == b"\0"
    if is_little or first[:2] == b"\xfe\xff" or first[:1] == b"\0":
        codec, end = ("utf-16-le", b"\n\0") if is_little else ("utf-16-be", b"\0\n")
        header, *lines = (first + file.read()).removesuffix(end).split(end)
        yield header.decode(codec, "replace").removeprefix("\ufeff")
        yield from (line.decode(codec, "replace") for line in lines)
        return
    yield first.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    for line in file:
        yield line.decode("utf-8", "replace")


def _delimiter(header: str) -> str:
    """Returns what splits the header into the most names, a comma if all do alike."""
    return max(_DELIMITERS, key=lambda delimiter: len(_cells(header, delimiter)))


def _cells(line: str, delimiter: str) -> list[str]:
    """Splits one line into cells; one that the csv module refuses has none."""
    try:
        reader = csv.reader(
            [line.rstrip("\r\n")], delimiter=delimiter, skipinitialspace=True
        )
        return next(reader, [])
    except csv.Error:  # a carriage return inside, or more than 131,072 characters
        return []


@contextlib.contextmanager
def _polars() -> Iterator[Any]:
    """Gives the module, which is of an extra, and turns its errors into one kind."""
    import polars

    try:
        yield polars
    except polars.exceptions.PolarsError as why:
        raise ValueError(str(why)) from None


def _parquet_names(path: Path) -> list[str]:
    with _polars() as pl:
        return list(pl.read_parquet_schema(path))


def _read_parquet(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    with _polars() as pl:
        frame = pl.read_parquet(path, columns=names)
        return {name: _as_numpy(pl, frame[name]) for name in names}


def _as_numpy(pl: Any, series: Any) -> np.ndarray:
    kind = series.dtype
    if kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        return series.cast(pl.Float64, strict=False).to_numpy()
    if kind in (pl.Categorical, pl.Enum):
        series = series.cast(pl.String)
    elif kind not in (pl.String, pl.Binary):
        raise ValueError(f"column {series.name!r} holds {kind}, not text or numbers")
    return np.array(series.to_list(), dtype=object)


def _npz_names(path: Path) -> list[str]:
    with np.load(path, allow_pickle=False) as arrays:
        return list(arrays)


def _read_npz(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in names}


_DELIMITERS = (",", ";", "\t")
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
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as why:
        raise ValueError(
            f"DATA must be a readable file, got {str(path)!r}: {why}"
        ) from None
