"""Reads a user's CSV, Excel, Parquet or NPZ files, or a data frame, into columns.

A folder is read as its files in the order of their names. All must be of these kinds,
except names that begin with a dot or an underscore, which are left out.

Names, types and the number of records are public. No value of a cell raises an error or
changes another record; `dpjax.tables.io._csv` defines the records of a text file.
"""

import contextlib
import re
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax._lazy import optional
from dpjax.tables.io import _csv
from dpjax.tables.io._texts import PLAIN, TextFormat, Texts, pl

Column = np.ndarray | Texts
_ROWS = 1 << 16  # rows in a chunk of a Parquet file
_NUMPY_KINDS = dict.fromkeys("biuf", "numbers") | dict.fromkeys("SUT", "text")
_NUMPY_KINDS |= dict.fromkeys("mM", "times")
# Names of types of pandas, polars and Arrow begin like this, in lowercase letters.
_KINDS = {
    "numbers": r"(sparse\[)?(u?int\d|float|double|half|decimal|bool)",
    "text": r"(large_)?(str(?!uct)|utf8)|categorical",
    "times": r"date|time|duration|period",
}


def column_names(path: Path, text_format: TextFormat = PLAIN) -> list[str]:
    """Returns the column names of a file, or of a folder's files; reads no records."""
    names: list[str] = []
    for file in files_of(path):
        read_names, _ = _READERS[_suffix(file)]
        with _readable(file):
            own = read_names(file, text_format)
        for option in ("skip_lines", "last_lines", "row_names"):
            value, name = getattr(text_format, option), option.replace("_", "-")
            rule = f"left out with {file.name}, which has no lines"
            is_fine = not value or _READERS[_suffix(file)] is _CSV
            _validate.require(is_fine, f"--{name}", value, rule)
        twice = sorted({name for name in own if own.count(name) > 1})
        hint = "; --skip-lines tells how many lines are above its header"
        rule = f"a file with named columns{hint}"
        _validate.require(len(own) > 0, "DATA", str(file), rule)
        rule = f"a file whose columns have distinct names (not {twice} twice){hint}"
        _validate.require(not twice, "DATA", str(file), rule)
        names = names or own
        rule = f"a folder of files with the same columns, {sorted(names)}"
        is_same = sorted(own) == sorted(names)
        _validate.require(is_same, "DATA", f"{file} with {sorted(own)}", rule)
    return names


def files_of(path: Path) -> list[Path]:
    """Returns the file at a path, or a folder's files; raises for unknown suffixes."""
    files = [path] if path.is_file() else []
    if path.is_dir():
        files = sorted(x for x in path.iterdir() if not x.name.startswith((".", "_")))
    other = [x.name for x in files if x.is_dir() or _suffix(x) not in _READERS]
    rule = f"a file that exists and ends in {', '.join(_READERS)}, or a folder of such"
    if len(other) < len(files):
        rule += f" alone, without {', '.join(other)}"
    _validate.require(len(files) > 0 and not other, "DATA", str(path), rule)
    return files


def surveys(path: Path, text_format: TextFormat) -> dict[str, _csv.Survey]:
    """Returns counts of odd lines by files that have lines, without a guarantee."""
    files = [file for file in files_of(path) if _READERS[_suffix(file)] is _CSV]
    return {file.name: _csv.survey(file, text_format) for file in files}


def declared_kinds(path: Path) -> dict[str, str]:
    """Returns kinds by the names of columns, as Parquet files declare them, else {}.

    Kinds are those of `_parquet_kind`. A column is left out if the files of a folder
    disagree on it. A schema may use kinds, because no records are read, nor categories
    of a type, which usually come from the records.
    """
    declared = []
    for file in files_of(path):
        kinds = {}
        if file.suffix.lower() == ".parquet":
            with _readable(file), _parquet(file) as opened:
                kinds = {x.name: _parquet_kind(x) for x in opened.schema_arrow}
        declared.append({k: x for k, x in kinds.items() if x not in (None, "bytes")})
    shared = set.intersection(*(set(kinds.items()) for kinds in declared))
    return {name: kind for name, kind in declared[0].items() if (name, kind) in shared}


def read_columns(
    path: Path, names: list[str], *, text_format: TextFormat = PLAIN
) -> dict[str, Column]:
    r"""Reads the columns in `names`, each of shape (n,), with n at least 1.

    The path is a text file with a header, an Excel file, whose first sheet is read, a
    Parquet file, an NPZ file with one array of shape (n,) for each column, or a folder
    of such files. Text files may be compressed by gzip. They are in UTF-8, UTF-16 or
    the encoding of `text_format`, with tabs in a .tsv file, else the commonest of
    comma, semicolon, tab and bar in the header. Text becomes `Texts`, and so do all
    cells of Excel, and whole numbers of a Parquet file, which keeps the last digit.
    Booleans of other files are 0 and 1, and a missing number is NaN.
    """
    chunks = [*read_chunks(path, names, text_format)]
    columns = {name: joined([chunk.pop(name) for chunk in chunks]) for name in names}
    is_fine = len(next(iter(columns.values()))) > 0
    _validate.require(is_fine, "DATA", str(path), "a file with at least one record")
    return columns


def read_chunks(
    path: Path, names: list[str], text_format: TextFormat = PLAIN
) -> Iterator[dict[str, Column]]:
    """Yields columns by name as `read_columns` does, in chunks, which save memory."""
    for file in files_of(path):
        _, read = _READERS[_suffix(file)]
        with _readable(file):
            before = file.stat()
            for columns in read(file, names, text_format):
                shapes = {name: column.shape for name, column in columns.items()}
                shape, *differing = {*shapes.values()}
                if differing or len(shape) != 1:
                    raise ValueError(f"its columns are not of one shape (n,): {shapes}")
                for name, column in columns.items():
                    if not (isinstance(column, Texts) or column.dtype.kind in "biuf"):
                        kind = f"column {name!r} holds {column.dtype}"
                        raise ValueError(f"{kind}, not text or numbers")
                yield columns
            now = file.stat()
            if (before.st_mtime_ns, before.st_size) != (now.st_mtime_ns, now.st_size):
                raise ValueError("the file was written to while it was read; try again")


def joined(parts: Sequence[Column]) -> Column:
    """Returns a column from its chunks in order; `Texts` if any chunk is `Texts`."""
    if len(parts) == 1:
        return parts[0]
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        return np.concatenate([np.asarray(part) for part in parts])
    cells = [
        part.cells if isinstance(part, Texts) else pl.Series(part).cast(pl.String)
        for part in parts
    ]
    is_number, series = all(x.is_number for x in texts), pl.concat(cells, rechunk=True)
    return Texts(series, texts[0].text_format, is_number=is_number)


def frame_names(frame: Any) -> list[str]:
    """Returns the names of columns of a frame or mapping; raises if names repeat."""
    names = getattr(frame, "column_names", getattr(frame, "columns", ()))
    names = [*(frame if isinstance(frame, Mapping) else names)]
    rule = "a data frame, a mapping of arrays, or the path of a file"
    _validate.require(len(names) > 0, "table", type(frame), rule)
    rule = "a table whose columns have distinct names"
    _validate.require(len({*names}) == len(names), "table", names, rule)
    return names


def frame_columns(
    frame: Any, names: list[str], dates: Collection[str] = ()
) -> dict[str, Column]:
    """Returns columns `names` of a pandas or polars frame, an Arrow table or a mapping.

    Their cells, (n,), are texts or numbers. A type of times raises `ValueError`, unless
    `dates` names the column: then cells are texts.
    """
    columns: dict[str, Column] = {}
    polars = sys.modules.get("polars")
    for name in names:
        column, kind = frame[name], kind_of(frame[name])
        rule = "of text or numbers"
        is_fine = kind != "times" or name in dates
        _validate.require(is_fine, f"column {name!r}", kind, rule)
        if kind and polars is not None and isinstance(column, polars.Series):
            column = _from_polars(column, PLAIN)
        elif not isinstance(column, Texts):
            column = _texts_of_times(cells_of(column))
            # An array of floats would merge large whole numbers.
            if kind == "numbers" and column.dtype == object:
                column = Texts(Texts.of(column).cells, is_number=True)
        columns[name] = column
    return columns


def kind_of(column: Any) -> str | None:
    """Returns "numbers", "text" or "times" if a column's type declares it, else None.

    Checks of columns use it, so that they depend on public types and on no cell.
    """
    kind = getattr(column, "dtype", getattr(column, "type", None))
    if isinstance(kind, np.dtype):
        return _NUMPY_KINDS.get(kind.kind)
    categories = getattr(kind, "categories", None)
    if hasattr(categories, "dtype"):  # pandas' categories, or an `Enum` of polars
        return kind_of(categories)
    kind = getattr(kind, "pyarrow_dtype", kind)
    kind = str(getattr(kind, "value_type", kind)).lower()
    return next((x for x, form in _KINDS.items() if re.match(form, kind)), None)


def cells_of(column: Any) -> np.ndarray:
    """Returns the cells of a column as an array (n,), each converted by itself.

    NumPy's types are kept, and floats and booleans of other types become float64. Other
    cells become objects, because one missing cell would turn a whole column into
    floats, which do not hold all whole numbers from 2^53 on.
    """
    kind = getattr(column, "dtype", None)
    is_list = hasattr(column, "__len__") and type(column) not in (str, bytes)
    if isinstance(column, np.ma.MaskedArray):
        column = column.tolist()
    elif isinstance(kind, np.dtype) or not is_list:
        return np.asarray(column)
    elif getattr(kind, "kind", "") in ("f", "b"):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    elif hasattr(column, "to_pylist"):
        column = _valid(column).to_pylist()
    return np.fromiter(iter(column), object, len(column))


def _parquet_names(path: Path, text_format: TextFormat) -> list[str]:
    with _parquet(path) as file:
        return file.schema_arrow.names


def _read_parquet(
    path: Path, names: list[str], text_format: TextFormat
) -> Iterator[dict[str, Column]]:
    """Yields a chunk of rows as columns by name; raises for lists and other times."""
    with _parquet(path) as file:
        schema = file.schema_arrow
        for field in map(schema.field, names):
            fine = {"numbers", "truth", "text", "bytes"}
            fine |= {"times"} if field.name in text_format.dates else set()
            if _parquet_kind(field) not in fine:
                kind = f"column {field.name!r} holds {field.type}"
                raise ValueError(f"{kind}, not text or numbers")
        chunks = file.iter_batches(_ROWS, columns=names)
        for chunk in chunks if file.metadata.num_rows else [schema.empty_table()]:
            cells = {name: pl.from_arrow(_valid(chunk.column(name))) for name in names}
            yield {k: _from_polars(x, text_format) for k, x in cells.items()}


def _parquet(path: Path) -> Any:
    # pyarrow reads texts that are not UTF-8, at which polars would raise an error.
    need = "Parquet needs pyarrow"
    return optional("pyarrow.parquet", need, "experiments").ParquetFile(path)


def _parquet_kind(field: Any) -> str | None:
    """Returns "nested", "truth" (boolean), "bytes" or else `kind_of` an Arrow field."""
    # Columns of files are checked by it. A column of type null has only missing cells.
    from pyarrow import types

    if types.is_nested(field.type):
        return "nested"
    if types.is_boolean(field.type):
        return "truth"
    is_bytes = re.match("(large_|fixed_size_)?binary|null", str(field.type))
    return "bytes" if is_bytes else kind_of(field)


def _valid(cells: Any) -> Any:
    """Returns an Arrow array for polars: bytes that are not UTF-8 become U+FFFD."""
    import pyarrow as pa

    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if "string" in str(cells.type):
        try:
            cells.validate(full=True)
        except pa.ArrowInvalid:
            raw = cells.cast(pa.large_binary()).to_pylist()
            texts = [None if x is None else x.decode("utf-8", "replace") for x in raw]
            return pa.array(texts, pa.large_string())
    return cells


def _from_polars(cells: Any, text_format: TextFormat) -> Column:
    """Returns a polars series as float64, or as `Texts` for text and exact integers."""
    kind = cells.dtype
    if kind.is_integer() or kind.is_decimal():  # float64 would merge large numbers
        return Texts(cells.cast(pl.String), is_number=True)
    if kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        return cells.cast(pl.Float64, strict=False).to_numpy()
    if kind == pl.Binary:
        return Texts.of(cells.to_list(), text_format)
    return Texts(cells.cast(pl.String), text_format)


def _texts_of_times(cells: np.ndarray) -> np.ndarray:
    return cells.astype(str) if cells.dtype.kind == "M" else cells


def _npz_names(path: Path, text_format: TextFormat) -> list[str]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return list(arrays)


def _read_npz(
    path: Path, names: list[str], text_format: TextFormat
) -> Iterator[dict[str, Column]]:
    """Yields one chunk, the named arrays of an NPZ file; texts become `Texts`."""
    columns: dict[str, Column] = {}
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        for name in names:
            array = arrays[name]
            if name in text_format.dates:
                array = _texts_of_times(array)
            columns[name] = array
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is no array")
            if array.dtype.kind in "SUT" and array.ndim == 1:
                columns[name] = Texts.of(array.tolist(), text_format)
    yield columns


_CSV = _csv.read_names, _csv.read_chunks
_READERS: dict[str, Any] = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".xlsx"), _CSV),
    ".parquet": (_parquet_names, _read_parquet),
    ".npz": (_npz_names, _read_npz),
}
_UNREADABLE = ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error
# These come from the header of an array, and from archives that are encrypted.
_UNREADABLE += SyntaxError, tokenize.TokenError, RuntimeError


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    return "".join(path.suffixes[-2:]).lower() if suffix == ".gz" else suffix


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns the readers' errors about a file into `ValueError`s that name the file."""
    try:
        yield
    except _UNREADABLE as why:
        message = f"DATA must be a readable file, got {str(path)!r}: {why}"
        raise ValueError(message) from None
