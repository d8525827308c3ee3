"""Reads the bundled files of the real data sets."""

import csv
import gzip
import importlib.resources
import io
import itertools
from collections.abc import Iterable

import numpy as np


def bundled(name: str) -> bytes:
    """Returns the uncompressed contents of a gzipped file that the package carries."""
    packed = importlib.resources.files("dpjax.datasets") / "data" / name
    return gzip.decompress(packed.read_bytes())


def read_columns(
    text: bytes, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads comma-separated text into columns of strings, by name.

    Short rows are filled with empty cells; cells beyond the names are left out. Blank
    lines are skipped.

    Args:
        text: the file, UTF-8.
        names: the columns' names; None takes the first row.
    """
    lines = io.StringIO(text.decode("utf-8", "replace"), newline="")
    rows = filter(None, csv.reader(lines, skipinitialspace=True))
    header = list(next(rows, []) if names is None else names)
    by_column = itertools.zip_longest(header, *rows, fillvalue="")
    return {
        name: np.array(cells, dtype=object)
        for name, *cells in itertools.islice(by_column, len(header))
    }
