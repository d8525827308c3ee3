"""The result of a solver: its released parameters and their guarantee."""

import dataclasses
import math
import statistics
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._lazy import as_html, to_frame
from dpjax._rounding import claim
from dpjax._tree import arrays, num_coordinates, register
from dpjax._types import ArrayLike, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.solvers.training._curves import Curves, check_columns, errors_of_sums


@register("params", "stats", "standard_errors", "correlations")
@dataclasses.dataclass(frozen=True)
class Solution:
    """Released parameters, and their privacy guarantee.

    The class is a pytree with the guarantee as static metadata, so that a solver may
    run under `jit` and `vmap`. All fields are public or released.

    Attributes:
        params: the released parameters.
        privacy: the guarantee of params. Under `vmap` over keys it holds for one run;
            releasing k runs spends k such guarantees. Releasing only the best run of a
            sweep over hyperparameters costs more than one run: see
            `dpjax.tuning.dp_select`.
        stats: public numbers that were used: steps, noise, sensitivity, batch size.
        standard_errors: standard errors of params, in their shape, if the solver
            computes intervals; infinite if there is no finite error. Otherwise None.
        correlations: correlations of the errors of params if there are standard_errors:
            shape (d, d) for a linear model; for `Curves`, slopes come before heights.
            They are zero for an infinite error. They give the standard errors of sums
            of params, such as params in other units.
    """

    params: PyTree
    privacy: PrivacyGuarantee
    stats: dict[str, Scalar]
    standard_errors: PyTree | None = None
    correlations: jax.Array | None = None
    to_frame, _repr_html_ = to_frame, as_html

    def __repr__(self) -> str:
        number = num_coordinates(self.params)
        stated = claim(self.privacy.epsilon, self.privacy.delta)
        return f"<Solution: {number:,} released numbers, {stated}>"

    def _table(self) -> tuple[list[str], Any]:
        """Returns titles and lines: a name such as means[0], and its numbers."""
        names = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.params):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "params"
            places = np.ndindex(np.shape(leaf))
            names += [f"{name}{[*place]}" if place else name for place in places]
        trees = {"value": self.params}
        if self.standard_errors is not None:
            ends, trees["standard_error"] = self.interval(), self.standard_errors
            trees["low"] = jax.tree.map(lambda x: x[0], ends)
            trees["high"] = jax.tree.map(lambda x: x[1], ends)
        flat = ([*map(np.ravel, jax.tree.leaves(x))] for x in trees.values())
        return ["name", *trees], zip(names, *map(np.concatenate, flat), strict=True)

    def predict(self, features: ArrayLike) -> jax.Array:
        """Returns predictions of a linear or an additive model, without offsets.

        For a loss with a link, predictions are on the scale of the link: log odds for
        the logistic loss, the logarithm of the mean for the Poisson loss.

        Args:
            features: shape (n, d), in the units of the fit.

        Returns:
            Shape (n,), or (n, K) with K outputs.

        Raises:
            ValueError: If params are not from a linear or additive model, or the shape
                of features does not fit.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.accounting import PrivacyGuarantee
            >>> privacy = PrivacyGuarantee.non_private()
            >>> solution = Solution(jnp.array([1.0, 2.0]), privacy, {})
            >>> print(solution.predict([[3.0, 4.0]]))
            [11.]
        """
        if isinstance(self.params, Curves):
            return self.params.predict(features)
        weights = self.params
        rule = "those of a linear or additive model, to predict"
        is_fine = isinstance(weights, jax.Array) and weights.ndim in (1, 2)
        _validate.require(is_fine, "params", type(weights), rule)
        columns = jnp.asarray(features, weights.dtype)
        check_columns(columns, len(weights))
        return jnp.matmul(columns, weights, precision=jax.lax.Precision.HIGHEST)

    def interval(self, level: float = 0.95, *, simultaneous: bool = False) -> PyTree:
        """Returns an interval for each of the params, from their standard errors.

        The interval is params -+ z standard_errors, with z a quantile of the normal
        distribution. It costs no privacy. Its solver says which errors it covers.

        Args:
            level: the probability of each interval, in (0, 1).
            simultaneous: whether level is the least probability that all k intervals
                hold together. Each then has the level 1 - (1 - level) / k (Bonferroni),
                which suffices however the errors depend on each other.

        Returns:
            Lower and upper ends, shape (2, ...) in each leaf. An interval is infinite
            if no finite interval is valid.

        Raises:
            ValueError: If the level is out of range, or there are no standard errors.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.accounting import PrivacyGuarantee
            >>> privacy, errors = PrivacyGuarantee.non_private(), jnp.array([0.5])
            >>> solution = Solution(jnp.array([1.0]), privacy, {}, errors)
            >>> low, high = solution.interval(0.9)[:, 0]
            >>> print(f"{low:.2f} {high:.2f}")
            0.18 1.82
        """
        errors = self.standard_errors
        z = _half_width(errors, level, simultaneous, num_coordinates(errors))
        return jax.tree.map(partial(_around, z), self.params, errors)

    def interval_of(
        self, matrix: ArrayLike, level: float = 0.95, *, simultaneous: bool = False
    ) -> jax.Array:
        """Returns intervals for sums of coefficients of a linear model.

        Rows of features give intervals for the predictions of `predict`, though not for
        new targets; the row (1, -1, 0) gives one for a difference. Standard errors of
        sums follow from the params' errors and correlations, so that these intervals
        cost no privacy, and cover what the intervals of `interval` cover.

        Args:
            matrix: shape (m, d), a row of factors of the d coefficients for each sum.
                If it is not public, neither are the intervals.
            level: the probability of each interval, in (0, 1).
            simultaneous: whether level is the least probability that all m intervals
                hold together: z is the quantile in `interval`, or if that is less, the
                root of the chi-squared quantile of d degrees of freedom, with which all
                sums of d normal errors hold at once (Scheffé 1953).

        Returns:
            Lower and upper ends, shape (2, m): infinite if a coefficient with a factor
            other than zero has no finite interval, and NaN if a factor is.

        Raises:
            ValueError: If the level or the shape is wrong, params are not from a linear
                model of one output, or there are no standard errors.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.accounting import PrivacyGuarantee
            >>> privacy, errors = PrivacyGuarantee.non_private(), jnp.array([0.3, 0.4])
            >>> solution = Solution(
            ...     jnp.array([2.0, 1.0]), privacy, {}, errors, jnp.eye(2))
            >>> low, high = solution.interval_of([[1.0, -1.0]])[:, 0]
            >>> print(f"{low:.2f} {high:.2f}")
            0.02 1.98
        """
        rule = "those of a linear model of one output, for sums of coefficients"
        is_vector = isinstance(self.params, jax.Array) and self.params.ndim == 1
        has_sums = self.standard_errors is None or self.correlations is not None
        _validate.require(is_vector and has_sums, "params", type(self.params), rule)
        errors, correlations = cast(Any, (self.standard_errors, self.correlations))
        factors = jnp.asarray(arrays(matrix, "matrix"), self.params.dtype)
        check_columns(factors, len(self.params), "matrix")
        z = _half_width(errors, level, simultaneous, len(factors))
        # For a single sum the quantile of all sums is never the smaller one.
        z = min(z, math.sqrt(special.chdtri(len(self.params), 1 - level)))
        errors_of_all = errors_of_sums(factors, errors, correlations)
        return _around(z, self.predict(factors), errors_of_all)

    def shapes(self) -> dict[int, tuple[jax.Array, jax.Array]]:
        """Returns the grid and the curve of each column of an additive model.

        Returns:
            A mapping as from `Curves.shapes`.

        Raises:
            ValueError: If params are not `Curves`.
        """
        rule = "those of an additive model, which have shapes"
        is_fine = isinstance(self.params, Curves)
        _validate.require(is_fine, "params", type(self.params), rule)
        return self.params.shapes()

    def bands(
        self, level: float = 0.95, *, simultaneous: bool = False
    ) -> dict[int, tuple[jax.Array, jax.Array, jax.Array]]:
        """Returns a band for each curve of an additive model with intervals.

        The band is curve -+ z standard errors, as in `interval`, at each number of the
        grid of `shapes`. A band is for the difference from the curve at zero, so it has
        no width there. It costs no privacy. Linear interpolation between grid points
        only widens it.

        Args:
            level: the probability at each number, in (0, 1).
            simultaneous: whether level is the least probability that all bands hold at
                all numbers together, by the rule in `interval`.

        Returns:
            A mapping from columns to `(grid, lower, upper)`, each of shape (m,). The
            band is infinite at numbers where no finite band is valid.

        Raises:
            ValueError: If the level is out of its range, params are not `Curves`, or
                there are no standard errors.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.accounting import PrivacyGuarantee
            >>> no_line, knots = jnp.zeros(1), (-1.0, 0.0, 1.0)
            >>> curves, errors = (
            ...     Curves(no_line, jnp.array([heights]), knots, (0,), None)
            ...     for heights in ([1.0, 0.0, 2.0], [0.1, 0.0, 0.5]))
            >>> privacy = PrivacyGuarantee.non_private()
            >>> solution = Solution(curves, privacy, {}, errors, jnp.eye(4))
            >>> grid, lower, upper = solution.bands()[0]
            >>> print(grid[1:4], lower[1:4].round(1), upper[1:4].round(1))
            [-1.  0.  1.] [0.8 0.  1. ] [1.2 0.  3. ]
        """
        shapes, curves, errors = self.shapes(), self.params, self.standard_errors
        num = sum(len(grid) for grid, _ in shapes.values())
        z, bands = _half_width(errors, level, simultaneous, num), {}
        for column, (grid, values) in shapes.items():
            half = z * curves.errors(errors, self.correlations, column, grid)
            bands[column] = grid, values - half, values + half
        return bands


def _half_width(
    errors: PyTree | None, level: float, simultaneous: bool, num: int
) -> float:
    """Returns z, where each of `num` intervals reaches z standard errors both ways."""
    # If they are simultaneous, each may miss with probability (1 - level) / num, as
    # the probability of any miss is at most the sum of all probabilities.
    _validate.probability(level=level)
    if errors is None:
        rule = "given for an interval, got None. Only some solvers return them, some"
        raise ValueError(f"standard_errors must be {rule} with intervals=True.")
    missed = (1 - level) / max(num, 1) if simultaneous else 1 - level
    return -statistics.NormalDist().inv_cdf(missed / 2)


def _around(z: float, x: jax.Array, error: jax.Array) -> jax.Array:
    """Returns the ends of intervals of z standard errors on both sides of x."""
    x = x.astype(error.dtype)  # counts are integers
    return jnp.stack([x - z * error, x + z * error])
