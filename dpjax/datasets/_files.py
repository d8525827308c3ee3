"""Finds the files of the real data sets: bundled, on this machine, or fetched."""

import csv
import gzip
import hashlib
import importlib.resources
import io
import itertools
import os
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dpjax._files import replacing


@dataclass(frozen=True)
class DataFile:
    """A public file that is not part of the package.

    Args:
        path: where the file lies below a data folder.
        instructions: how to obtain it by hand.
        address: its public address, or None where no address is known to serve
            exactly this file.
        sha256: checksum of the file at that address.
    """

    path: str
    instructions: str
    address: str | None = None
    sha256: str | None = None


def bundled(name: str) -> bytes:
    """Returns the uncompressed contents of a gzipped file that the package carries."""
    packed = importlib.resources.files("dpjax.datasets") / "data" / name
    return gzip.decompress(packed.read_bytes())


def locate(file: DataFile) -> Path:
    """Finds a file in $DPJAX_DATA, then in the cache, else fetches it into the cache.

    A file that a person put into either folder is used as it is; one that is fetched
    must match its checksum.

    Raises:
        FileNotFoundError: If it is in neither folder and has no public address.
        OSError: If it cannot be fetched.
        ValueError: If what was fetched has another checksum; nothing is kept then.
    """
    cached = cache_folder() / file.path
    places = [cached]
    if os.environ.get("DPJAX_DATA"):
        places.insert(0, Path(os.environ["DPJAX_DATA"]) / file.path)
    for place in places:
        if place.is_file():
            return place
    if file.address is None:
        raise FileNotFoundError(_by_hand(file, "is not on this machine"))
    _fetch(file, file.address, cached)
    return cached


def unzipped(file: DataFile) -> bytes:
    """Returns the content of a gzipped file, which is fetched if needed."""
    return gzip.decompress(locate(file).read_bytes())


def cache_folder() -> Path:
    """Returns the folder for fetched files: $XDG_CACHE_HOME/dpjax or ~/.cache/dpjax."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "dpjax"


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


def read_matrix(text: bytes) -> np.ndarray:
    """Reads lines of numbers as float32; NaN where a cell does not parse."""
    try:
        return np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.float32, ndmin=2)
    except ValueError:  # An odd cell: genfromtxt takes it, ten times slower.
        table = np.genfromtxt(io.BytesIO(text), delimiter=",", dtype=np.float32)
        return np.atleast_2d(table)


def _fetch(file: DataFile, address: str, target: Path) -> None:
    # No half file or wrong file is ever taken for the data.
    with replacing(target) as sink:
        checksum = _copy(file, address, sink)
        if checksum != file.sha256:
            raise ValueError(
                _by_hand(file, f"has sha256 {checksum} at {address}")
                + f" The checksum must be {file.sha256}."
            )


def _copy(file: DataFile, address: str, sink: BinaryIO) -> str:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(address, timeout=60) as source:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
    except OSError as error:
        raise OSError(_by_hand(file, f"could not be fetched: {error}")) from error
    return digest.hexdigest()


def _by_hand(file: DataFile, problem: str) -> str:
    return (
        f"{file.path} {problem}. {file.instructions} Put it at $DPJAX_DATA/{file.path} "
        f"or at {cache_folder() / file.path}."
    )
