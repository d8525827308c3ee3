"""Checks that curves and standard errors fit the features of a model."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dpjax import _validate
from dpjax.tables.columns._encoding import Categorical, Numeric

if TYPE_CHECKING:
    from dpjax.solvers import Curves
    from dpjax.tables.models._terms import Terms


def bending_features(columns: Mapping[str, Numeric | Categorical]) -> list[int]:
    """Returns the indices of the features that may have a curve.

    These are numeric features whose limit is above one scale; flags stay linear.

    Example:
        >>> bending_features({"town": Categorical(("Ghent", "Lier")), "age": Numeric()})
        [2]
    """
    kinds = [kind for key, kind in columns.items() for _ in kind.names(key)]
    return [index for index, kind in enumerate(kinds) if kind.limit > 1]


def check_curves(curves: "Curves | Terms", numbers: list[int]) -> None:
    """Requires curves of numeric columns, each with a height for each knot."""
    smooth, knots, heights = curves.smooth, curves.knots, np.asarray(curves.heights)
    index, shape = len(curves.slopes) - 1, (len(smooth), len(knots))
    intercept = getattr(curves, "intercept", index)
    is_ascending = all(-math.inf < a < b < math.inf for a, b in pairwise(knots))
    is_each = set(smooth) <= set(numbers) and len(set(smooth)) == len(smooth) > 0
    is_height = heights.shape == shape and heights.dtype.kind == "f"
    for is_fine, value, rule in (
        (is_each, smooth, f"curves of different features among {numbers}"),
        (is_ascending and len(knots) > 1, knots, "of two or more knots, ascending"),
        (is_height, heights.shape, f"heights of shape {shape}, curves by knots"),
        (intercept == index, intercept, f"of the intercept {index}"),
    ):
        _validate.require(is_fine, "params", value, rule)


def check_errors(size: int, errors: object, correlations: object) -> None:
    """Requires positive standard errors of so many weights, and their correlations."""
    of_each, of_pairs = np.asarray(errors), np.asarray(correlations)
    for is_fine, name, value, rule in (
        (of_each.shape == (size,), "standard_errors", of_each.shape, f"({size},)"),
        (of_pairs.shape == 2 * (size,), "correlations", of_pairs.shape, f"of {size}^2"),
        (
            of_each.dtype.kind == "f" and bool(np.all(of_each > 0)),
            "standard_errors",
            of_each,
            "positive numbers",
        ),
        (
            of_pairs.dtype.kind == "f" and bool(np.all(np.isfinite(of_pairs))),
            "correlations",
            of_pairs,
            "finite numbers",
        ),
    ):
        _validate.require(is_fine, name, value, rule)
