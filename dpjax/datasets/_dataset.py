"""The form in which every real data set is returned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dpjax.tables.columns._encoding import Categorical, Numeric, encode


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
        test_targets: test targets, float32 of shape (m,), NaN where one is missing.
        target_unit: the unit of the targets.
        licence: licence of the data.
        source: where the data come from.
        schema: how each column was encoded, by the column's name.
        weights: of the training records, in [0, 1], float32 of shape (n,); None for
            equal weights.
        exposures: of the training records, divided by the largest exposure, in [0, 1],
            float32 of shape (n,); a record's mean is proportional to its exposure.
            None for equal exposures.
        test_exposures: of the test records, float32 of shape (m,).

    Example:
        >>> from dpjax import datasets
        >>> features, targets = datasets.load("adult").train
        >>> features.shape, targets.shape
        ((32561, 105), (32561,))
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
        """The training pair (features, targets), the `data` of a solver."""
        return self.features, self.targets

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """The test pair (features, targets)."""
        return self.test_features, self.test_targets


def assemble(
    columns: Mapping[str, np.ndarray],
    schema: Mapping[str, Numeric | Categorical],
    targets: np.ndarray,
    is_test: np.ndarray,
    *,
    name: str,
    task: Literal["classification", "regression"],
    target_unit: str,
    licence: str,
    source: str,
) -> Dataset:
    """Encodes the columns, appends the intercept and splits the records."""
    features, feature_names = encode(columns, schema)
    features = np.hstack([features, np.ones((len(features), 1), np.float32)])
    return Dataset(
        name=name,
        task=task,
        feature_names=(*feature_names, "intercept"),
        features=features[~is_test],
        targets=targets[~is_test],
        test_features=features[is_test],
        test_targets=targets[is_test],
        target_unit=target_unit,
        licence=licence,
        source=source,
        schema=schema,
    )


def every_fifth(num_records: int, *, block_size: int = 1) -> np.ndarray:
    """Marks every fifth block of consecutive records: a split by public index."""
    return np.arange(num_records) // block_size % 5 == 4


def signs(is_positive: np.ndarray) -> np.ndarray:
    """Returns +1 where true, else -1, in float32."""
    return np.where(is_positive, np.float32(1), np.float32(-1))


def in_units(columns: Mapping[str, np.ndarray], name: str, unit: float) -> np.ndarray:
    """Returns a numeric column divided by a unit, 0 where a cell does not parse."""
    return encode(columns, {name: Numeric(scale=unit)})[0][:, 0]
