"""The parameters of an additive model, which is a sum of curves of single columns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import ndtr

from dpjax import _validate
from dpjax._tree import register
from dpjax._types import ArrayLike

LARGEST = 1e15  # larger numbers are clipped to it, so that their squares stay finite
Direction = Literal["increasing", "decreasing"]
_matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def bounded(x: jax.Array) -> jax.Array:
    """Returns x with finite numbers: NaN becomes zero, large numbers are clipped."""
    return jnp.clip(jnp.nan_to_num(x), -LARGEST, LARGEST)


@register("slopes", "heights")
@dataclass(frozen=True)
class Curves:
    """A prediction that is a sum of functions of single columns.

    A column x_j adds slopes[j]·x_j. A column with a curve also adds a function that is
    linear between knots and constant beyond them. NaN counts as zero. The class is a
    pytree: slopes and heights are released, all other fields are public.

    Attributes:
        slopes: shape (d,), or (d, K) with K outputs, the intercept among them.
        heights: shape (k, m) or (k, m, K): the values of k functions at m knots. If m
            is zero the model is linear.
        knots: m public numbers, ascending, in units of the columns.
        smooth: the indices of the k columns with curves.
        intercept: index of the column of ones, or None. Its values are not read.
    """

    slopes: jax.Array
    heights: jax.Array
    knots: tuple[float, ...]
    smooth: tuple[int, ...]
    intercept: int | None

    def predict(self, features: ArrayLike) -> jax.Array:
        """Returns the linear predictor, before the link: (n,), or (n, K) for K outputs.

        The intercept is included; known offsets of records are not: add them.

        Args:
            features: shape (n, d), in the units of the fit.

        Raises:
            ValueError: If the shape does not fit.
        """
        columns = jnp.asarray(features)
        check_columns(columns, len(self.slopes))
        columns = bounded(columns.astype(self.slopes.dtype))
        if self.intercept is not None:
            columns = columns.at[:, self.intercept].set(1.0)
        total = _matmul(columns, self.slopes)
        if not self.knots:
            return total

        def add(total: jax.Array, bent: tuple[jax.Array, jax.Array]):
            values, heights = bent
            return total + _matmul(hats(values, self.knots), heights), None

        bent = columns[:, jnp.asarray(self.smooth)].T, self.heights
        return jax.lax.scan(add, total, bent)[0]

    def curve(self, column: int, grid: ArrayLike) -> jax.Array:
        """Returns a column's part of the linear predictor, (m,) or (m, K).

        Args:
            column: the index of the column.
            grid: shape (m,), values of the column in the units of the fit.

        Raises:
            ValueError: If the index or the shape does not fit.
        """
        own, factors = self._factors(column, grid)
        return _matmul(factors, self._flat()[own])

    def shapes(self) -> dict[int, tuple[jax.Array, jax.Array]]:
        """Returns a grid and the curve on it for each column but the intercept's.

        The grid has the knots, and one number four units beyond them on each side.
        Between the numbers of the grid, and beyond them, a curve is a straight line.

        Returns:
            A mapping from indices to `(grid, values)`, shapes (m,), and (m,) or (m, K).
        """
        shapes = {}
        for column in range(len(self.slopes)):
            if column == self.intercept:
                continue
            knots = self.knots if column in self.smooth else ()
            low, high = (min(knots, default=0.0), max(knots, default=0.0))
            grid = jnp.asarray([low - 4, *(knots or (0.0,)), high + 4])
            shapes[column] = grid, self.curve(column, grid)
        return shapes

    def monotone(self, directions: Mapping[int, Direction]) -> "Curves":
        """Returns curves that only rise, or only fall, and are nearest to these ones.

        Isotonic regression changes the values at knots. Squares are weighted by the
        shares of a normal law nearest to the knots; in this norm the values come no
        farther from those of any curve with the direction. A line beyond the knots with
        the other one becomes constant. Released numbers suffice: it costs no privacy.

        Args:
            directions: a mapping from indices of columns to "increasing" or
                "decreasing", which must not depend on the records.

        Raises:
            ValueError: If a column or a direction does not exist, or the model has more
                than one output.

        Reference:
            Barlow, Bartholomew, Bremner, Brunk (1972), "Statistical inference under
            order restrictions".
        """
        is_fine, rule = self.slopes.ndim == 1 or not directions, "for a single output"
        _validate.require(is_fine, "directions", directions, rule)
        columns = [x for x in range(len(self.slopes)) if x != self.intercept]
        slopes, heights = (np.array(x) for x in (self.slopes, self.heights))
        knots = np.array(self.knots)
        for column, direction in directions.items():
            rule = f"a mapping from indices of columns, {columns}"
            _validate.require(column in columns, "directions", column, rule)
            _validate.choice(Direction, **{f"directions[{column}]": direction})
            slope, is_up = slopes[column], direction == "increasing"
            slopes[column] = max(slope, 0) if is_up else min(slope, 0)
            if not self.knots or column not in self.smooth:
                continue
            place, middles = self.smooth.index(column), (knots[1:] + knots[:-1]) / 2
            shares = np.diff(ndtr([-np.inf, *middles, np.inf])) + 1e-9
            values = slope * knots + heights[place]
            values = isotonic_regression(values, weights=shares, increasing=is_up).x
            # A curve is zero at zero, if there is an intercept for the difference.
            level = 0.0 if self.intercept is None else np.interp(0.0, knots, values)
            heights[place] = values - slopes[column] * knots - level
            if self.intercept is not None:
                slopes[self.intercept] += level
        return replace(self, slopes=jnp.asarray(slopes), heights=jnp.asarray(heights))

    def errors(
        self, errors: "Curves", correlations: jax.Array, column: int, grid: ArrayLike
    ) -> jax.Array:
        """Returns the standard errors of `curve`, shape (m,), as `errors_of_sums` does.

        Args:
            errors: standard errors of slopes and heights; there is one output.
            correlations: correlations of all slopes, followed by all heights.
            column: as for `curve`, and it raises the same errors.
            grid: as for `curve`.
        """
        own, factors = self._factors(column, grid)
        return errors_of_sums(factors, errors._flat()[own], correlations[own][:, own])

    def _flat(self) -> jax.Array:
        """Returns all slopes, followed by all heights: a vector, or of K columns."""
        heights = self.heights.reshape(-1, *self.slopes.shape[1:])
        return jnp.concatenate([self.slopes, heights])

    def _factors(self, column: int, grid: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Returns indices (p,) of coefficients in `_flat`, and their factors (m, p).

        The column's curve at the m numbers of `grid` is the factors times coefficients.
        """
        num_columns = len(self.slopes)
        rule = f"the index of a column, from 0 to {num_columns - 1}"
        is_fine = isinstance(column, int | np.integer) and 0 <= column < num_columns
        _validate.require(is_fine, "column", column, rule)
        values = jnp.asarray(grid)
        _validate.require(values.ndim == 1, "grid", values.shape, "an array of ndim 1")
        values = bounded(values.astype(self.slopes.dtype))
        own, factors = [column], values[:, None]
        if self.knots and column in self.smooth:
            first = num_columns + self.smooth.index(column) * len(self.knots)
            own += range(first, first + len(self.knots))
            factors = jnp.hstack([factors, hats(values, self.knots)])
        return jnp.asarray(own), factors


def errors_of_sums(
    factors: jax.Array, errors: jax.Array, correlations: jax.Array
) -> jax.Array:
    """Returns standard errors (m,) of sums of k estimates times `factors` (m, k).

    The estimates have standard errors `errors` (k,), and correlations (k, k). A sum has
    an infinite error if an estimate without a finite error is in it.
    """
    is_known = jnp.isfinite(errors)
    is_hidden = jnp.any((factors != 0) & ~is_known[None, :], axis=1)
    parts = factors * jnp.where(is_known, errors, 0.0)[None, :]
    # Each row is divided by its largest entry, so that no square underflows.
    size = jnp.max(jnp.abs(parts), axis=1)
    parts = parts / jnp.where(size > 0, size, 1.0)[:, None]
    products = _matmul(parts, correlations)
    # The terms may cancel, so the variance is at least the sum's rounding error.
    rounding = len(errors) * jnp.finfo(parts.dtype).eps
    least = rounding * jnp.sum(jnp.abs(parts), axis=1) ** 2
    variances = jnp.maximum(jnp.sum(products * parts, axis=1), least)
    return jnp.where(is_hidden, jnp.inf, size * jnp.sqrt(variances))


def check_columns(columns: jax.Array, num_columns: int, name: str = "features") -> None:
    """Requires an array of num_columns columns."""
    is_fine = columns.ndim == 2 and columns.shape[1] == num_columns
    rule = f"of shape (n, {num_columns})"
    _validate.require(is_fine, name, columns.shape, rule)


def hats(values: jax.Array, knots: tuple[float, ...]) -> jax.Array:
    """Returns the m hat functions at values, shape (..., m), in [0, 1] with sum 1.

    A hat is the linear B-spline of one knot: 1 at this knot, 0 at all other knots,
    linear between knots, constant beyond them. A curve is a sum of heights times hats.
    """
    rises = [
        jnp.clip((values - low) / (high - low), 0.0, 1.0)
        for low, high in pairwise(knots)
    ]
    ones = jnp.ones_like(values)
    return jnp.stack([ones, *rises], -1) - jnp.stack([*rises, 0 * ones], -1)
