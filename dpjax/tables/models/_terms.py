"""The numbers of a model in NumPy, so that it is loaded and predicts without JAX."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from dpjax import _validate
from dpjax.tables.columns._kinds import Categorical, Numeric

if TYPE_CHECKING:
    from dpjax.solvers import Curves

Link = Literal["identity", "logit", "log", "softmax"]
LARGEST = 1e15  # in scales; features of curves are clipped to it, as in `Curves`
MEANS = 1e-3, 30.0  # in scales, the range of means of `losses.log_link`
FAR = 700.0  # largest log odds, so that the exponential is finite in float64


class Terms(NamedTuple):
    """A model's weights and curves in NumPy; the score is the sum of all terms."""

    # All of them have a last axis (K,) for K classes.
    slopes: np.ndarray  # (d,), the intercept comes last
    heights: np.ndarray  # (k, m), k curves at m knots; (0, 0) in a linear model
    knots: tuple[float, ...] = ()  # m numbers, ascending, in scales from the center
    smooth: tuple[int, ...] = ()  # the indices of the k features that have a curve

    @classmethod
    def of(cls, params: "np.ndarray | Curves") -> "Terms":
        """Returns the terms of a linear (weights) or additive model (curves)."""
        if not hasattr(params, "slopes"):
            return cls(np.asarray(params), np.zeros((0, 0)))
        curves = cast("Curves", params)
        arrays = np.asarray(curves.slopes), np.asarray(curves.heights)
        return cls(*arrays, curves.knots, curves.smooth)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Returns scores (n,), or (n, K), of features (n, d), before the link."""
        slopes = np.asarray(self.slopes, np.float64)
        if not self.knots:
            return features @ slopes
        features = np.clip(features, -LARGEST, LARGEST)
        bends = (
            interpolated(features[:, index], self.knots, heights)
            for index, heights in zip(self.smooth, self.heights, strict=True)
        )
        return sum(bends, start=features @ slopes)

    def curve(self, index: int, grid: np.ndarray) -> np.ndarray:
        """Returns a feature's contribution at numbers of `grid`, (m,) or (m, K)."""
        slopes = np.asarray(self.slopes[index], np.float64)
        values = np.multiply.outer(np.asarray(grid, np.float64), slopes)
        if index not in self.smooth:
            return values
        heights = self.heights[self.smooth.index(index)]
        return values + interpolated(grid, self.knots, heights)

    def of_outputs(self) -> "list[Terms]":
        """Returns the terms of each output: one for each class, or one."""
        if self.slopes.ndim == 1:
            return [self]
        heights = self.heights if self.knots else np.zeros((0, 0, self.slopes.shape[1]))
        pairs = zip(self.slopes.T, np.moveaxis(heights, -1, 0), strict=True)
        return [self._replace(slopes=own, heights=bent) for own, bent in pairs]

    def made(self) -> "Curves":
        """Returns the terms as `Curves`, which need JAX."""
        from dpjax.solvers import Curves

        slopes, heights = cast(Any, self.slopes), cast(Any, self.heights)
        return Curves(slopes, heights, self.knots, self.smooth, len(slopes) - 1)


def interpolated(at: Any, knots: Any, heights: np.ndarray) -> np.ndarray:
    """Returns curves of heights (m,) or (m, K) at numbers (n,): (n,) or (n, K)."""
    return np.apply_along_axis(lambda own: np.interp(at, knots, own), 0, heights)


def means_of(link: Link, scores: np.ndarray) -> np.ndarray:
    """Returns the mean of the target at each score, as the loss's `mean_of` does."""
    if link == "softmax":  # probabilities of the classes, (n, K)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)
    if link == "logit":
        return 1 / (1 + np.exp(-np.clip(scores, -FAR, FAR)))
    if link == "log":
        low, high = map(math.log, MEANS)
        return np.exp(np.clip(scores, low, high))
    return scores


def bending_features(columns: Mapping[str, Numeric | Categorical]) -> list[int]:
    """Returns the indices of the features that may have a curve in an additive model.

    `columns` are the kinds of a model's columns, in order. Numeric features with a
    limit above one scale may have a curve; flags and categories stay linear.
    """
    kinds = [kind for key, kind in columns.items() for _ in kind.names(key)]
    return [index for index, kind in enumerate(kinds) if kind.limit > 1]


def check_curves(curves: "Curves | Terms", numbers: list[int]) -> None:
    """Raises unless knots ascend and curves are of features, by index, in `numbers`."""
    # For `Model`, which may be from a file; features in `numbers` may have a curve.
    smooth, knots, heights = curves.smooth, curves.knots, np.asarray(curves.heights)
    index, outputs = len(curves.slopes) - 1, np.shape(curves.slopes)[1:]
    shape = (len(smooth), len(knots), *outputs)
    intercept = getattr(curves, "intercept", index)
    is_ascending = all(-math.inf < a < b < math.inf for a, b in pairwise(knots))
    is_each = set(smooth) <= set(numbers) and len(set(smooth)) == len(smooth) > 0
    is_height = heights.shape == shape and heights.dtype.kind == "f"
    height = f"{heights.dtype}{list(heights.shape)}"
    for is_fine, value, rule in (
        (is_each, smooth, f"curves of different features among {numbers}"),
        (is_ascending and len(knots) > 1, knots, "curves of 2 or more ascending knots"),
        (is_height, height, f"curves with float heights of shape {shape}"),
        (intercept == index, intercept, f"curves with the intercept at index {index}"),
    ):
        _validate.require(is_fine, "params", value, rule)


def check_errors(size: int, name: str, errors: Any, other: str, pairs: Any) -> None:
    """Raises, with both names, unless errors are positive and correlations finite."""
    errors, pairs = np.asarray(errors), np.asarray(pairs)
    is_pairs = pairs.shape == 2 * (size,) and pairs.dtype.kind == "f"
    is_pairs = is_pairs and bool(np.all(np.isfinite(pairs)))
    is_errors = errors.shape == (size,) and errors.dtype.kind == "f"
    rule = f"positive numbers of shape ({size},)"
    is_fine = is_errors and bool(np.all(errors > 0))
    _validate.require(is_fine, name, errors, rule)
    rule = f"of {size}^2 finite numbers"
    _validate.require(is_pairs, other, pairs, rule)
