"""Columns of categories, which are public, beside those of numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.sklearn import _labels, _tables
from dpjax.tables.io._tables import cells_of

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
        names = _tables.names_of(X)
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
    kinds = {name: _of_dtype(kind) for name, kind in _types(X)}
    return {name: values for name, values in kinds.items() if values is not None}


def straight_of(X: Any) -> set[Any]:
    """Returns the names of columns of truth values, whose functions are lines."""
    return {name for name, kind in _types(X) if str(kind).lower().startswith("bool")}


def _of_dtype(dtype: Any) -> np.ndarray | None:
    """Returns the categories that a type of pandas or polars declares."""
    values = getattr(dtype, "categories", None)
    if values is None or type(dtype).__name__ not in ("CategoricalDtype", "Enum"):
        return None
    return cells_of(values).astype(object) if len(values) else None


def _types(X: Any) -> list[tuple[Any, Any]]:
    """Returns the names and the types of a frame's columns."""
    columns = _tables.columns_of(X) or []
    types = [getattr(x, "dtype", getattr(x, "type", None)) for x in columns]
    return list(zip(_tables.names_of(X), types, strict=False))
