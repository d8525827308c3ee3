"""Loading, reading and splitting of the real data sets, in one form for all."""

import csv
import gzip
import importlib
import importlib.resources
import io
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dpjax import _validate
from dpjax.tables.columns._kinds import Categorical, Numeric, encode

PUBLIC_SETS = ("adult", "rand_hie")  # the package contains their files


@dataclass(frozen=True, eq=False)
class Dataset:
    """A real data set, encoded with public constants, in NumPy arrays.

    Args:
        name: the loader's name.
        task: "classification", with targets -1 and +1, or "regression".
        feature_names: names of the d features; the last is the intercept, all ones.
        features: training features, float32 of shape (n, d).
        targets: training targets, float32 of shape (n,).
        test_features: test features, float32 of shape (m, d).
        test_targets: test targets, float32 of shape (m,), NaN if missing.
        target_unit: the unit of the targets.
        licence: licence of the data.
        source: where the data come from.
        schema: how each column was encoded, by the column's name.
        weights: weights of the training records, in [0, 1], float32 of shape (n,); None
            for equal weights.
        exposures: exposures of the training records, divided by the largest exposure,
            in [0, 1], float32 of shape (n,); a record's mean is proportional to its
            exposure. None for equal exposures.
        test_exposures: exposures of the test records, float32 of shape (m,).
    """

    name: str
    task: Literal["classification", "regression"]
    feature_names: tuple[str, ...]
    features: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    test_features: np.ndarray = field(repr=False)
    test_targets: np.ndarray = field(repr=False)
    target_unit: str
    licence: str
    source: str
    schema: Mapping[str, Numeric | Categorical] = field(
        default_factory=dict, repr=False
    )
    weights: np.ndarray | None = field(default=None, repr=False)
    exposures: np.ndarray | None = field(default=None, repr=False)
    test_exposures: np.ndarray | None = field(default=None, repr=False)

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """The training pair (features, targets), the `data` argument of a solver."""
        return self.features, self.targets

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """The test pair (features, targets)."""
        return self.test_features, self.test_targets


def load(name: str) -> Dataset:
    """Loads a real data set, encoded with public constants only.

    The package contains both data sets. `dpjax/datasets/_<name>.py` documents the
    target, the scales and the source of each.

    Args:
        name: "adult", whether a person earns more than 50,000 dollars, with 32,561
            training records; or "rand_hie", the medical cost of a person in a year,
            with 16,190. Another name raises `ValueError`.

    Example:
        >>> data = load("adult")
        >>> data.features.shape, data.test_features.shape
        ((32561, 105), (16281, 105))
    """
    rule = f"one of {', '.join(PUBLIC_SETS)}"
    _validate.require(name in PUBLIC_SETS, "name", name, rule)
    return importlib.import_module(f"dpjax.datasets._{name}").load()


def assemble(
    columns: Mapping[str, np.ndarray],
    schema: Mapping[str, Numeric | Categorical],
    targets: np.ndarray,
    is_test: np.ndarray,
    **about: Any,
) -> Dataset:
    """Returns a `Dataset` for a loader: encodes columns and splits off test records.

    `columns`, by name, and `targets` are arrays (n,), and so is `is_test`, which marks
    test records. `schema` tells how to encode columns; `about` has all other fields.
    """
    features, feature_names = encode(columns, schema)
    features = np.hstack([features, np.ones((len(features), 1), np.float32)])
    return Dataset(
        feature_names=(*feature_names, "intercept"),
        features=features[~is_test],
        targets=targets[~is_test],
        test_features=features[is_test],
        test_targets=targets[is_test],
        schema=schema,
        **about,
    )


def every_fifth(num_records: int, *, block_size: int = 1) -> np.ndarray:
    """Marks every fifth block of consecutive records, for a split by public index."""
    return np.arange(num_records) // block_size % 5 == 4


def signs(is_positive: np.ndarray) -> np.ndarray:
    """Returns +1 where true, else -1, in float32."""
    return np.where(is_positive, np.float32(1), np.float32(-1))


def in_units(columns: Mapping[str, np.ndarray], name: str, unit: float) -> np.ndarray:
    """Returns a numeric column divided by a unit, 0 where a cell does not parse."""
    return encode(columns, {name: Numeric(scale=unit)})[0][:, 0]


def bundled(name: str) -> bytes:
    """Returns the uncompressed contents of a gzipped file that the package carries."""
    packed = importlib.resources.files("dpjax.datasets") / "data" / name
    return gzip.decompress(packed.read_bytes())


def read_columns(
    text: bytes, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Returns columns of a data set, arrays (n,) of strings by name, from CSV text.

    `names` are the columns in order; None: they are in the first row. A row that is too
    short gets empty strings.
    """
    lines = io.StringIO(text.decode("utf-8", "replace"), newline="")
    rows = filter(None, csv.reader(lines, skipinitialspace=True))
    header = list(next(rows, []) if names is None else names)
    by_column = itertools.zip_longest(header, *rows, fillvalue="")
    return {
        name: np.array(cells, dtype=object)
        for name, *cells in itertools.islice(by_column, len(header))
    }
