"""Columns of categories, which are public, beside those of numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.sklearn import _labels

FROM_DTYPE = "from_dtype"


def categories_of(given: Any, X: Any) -> dict[Any, np.ndarray]:
    """Returns the public categories of columns, by name, or by index in an array.

    Args:
        given: "from_dtype", or a mapping from columns to their categories, or None.
        X: the table of a fit, of which names and types of columns are read.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        names = _names(X)
        for name in given:
            _validate.require(
                name in names, "categorical_features", name, f"of columns among {names}"
            )
        return {
            name: _labels.declared(given[name], f"categorical_features[{name!r}]")
            for name in names
            if name in given
        }
    rule = f"{FROM_DTYPE!r}, a mapping from columns to lists of categories, or None"
    is_fine = isinstance(given, str) and given == FROM_DTYPE
    _validate.require(is_fine, "categorical_features", given, rule)
    found = {name: _of_dtype(X[name].dtype) for name in _frame_names(X)}
    return {name: values for name, values in found.items() if values is not None}


def straight_of(X: Any) -> set[Any]:
    """Returns the names of columns of truth values, whose functions are lines."""
    kinds = "bool", "boolean"
    return {x for x in _frame_names(X) if str(X[x].dtype).lower() in kinds}


def coded(X: Any, categories: dict[Any, np.ndarray]) -> Any:
    """Returns the table with places of categories instead, -1 for all others."""
    if not categories:
        return X
    if not _frame_names(X):
        X = np.array(X, object)
        for index, values in categories.items():
            X[:, index] = _labels.indices(X[:, index], values)
        return X
    codes = {
        name: _labels.indices(np.asarray(X[name], object), values).astype(np.float64)
        for name, values in categories.items()
    }
    if hasattr(X, "assign"):  # a frame of pandas
        return X.assign(**codes)
    return X.with_columns([type(X[name])(name, code) for name, code in codes.items()])


def _of_dtype(dtype: Any) -> np.ndarray | None:
    """Returns the categories that a type of pandas or polars declares."""
    values = getattr(dtype, "categories", None)
    if values is None or type(dtype).__name__ not in ("CategoricalDtype", "Enum"):
        return None
    array = np.asarray(values, object)
    return array if len(array) else None


def _frame_names(X: Any) -> list[Any]:
    return list(X.columns) if hasattr(X, "columns") and hasattr(X, "dtypes") else []


def _names(X: Any) -> list[Any]:
    names = _frame_names(X)
    return names or list(range(np.shape(X)[1] if np.ndim(X) == 2 else 0))
