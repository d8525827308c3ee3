"""A sum of curves of columns, from data and a budget, without hyperparameters."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate, accounting
from dpjax._types import ArrayLike, Key
from dpjax.losses import LinearLoss
from dpjax.losses._shared import named
from dpjax.solvers._calibration import check_noise
from dpjax.solvers._curves import Curves, hats, held
from dpjax.solvers._loop import Execution
from dpjax.solvers._solution import Solution
from dpjax.solvers.linear._model import dp_linear_model

_COARSE = (-2.0, 0.0, 2.0)
_FINE = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


class Prior(NamedTuple):
    """How freely columns bend, chosen by public numbers alone.

    Attributes:
        records: what coarse and fine knots need: so many records for each weight of
            the model and each unit of the noise multiplier.
        line: the unit of the lines. Steps that are equal in all weights move a
            function by the square of its unit.
        height: the unit of the hat functions.
    """

    records: tuple[float, float]
    line: float
    height: float

    @classmethod
    def of(cls, loss: LinearLoss) -> "Prior":
        """Returns that of a loss.

        Labels bound what a record says. Other targets may be nearly all noise, with
        heavy tails, which curves follow sooner than lines do.
        """
        if loss.num_outputs > 1 or loss.target_range == (-1.0, 1.0):
            return cls((8.0, 12.0), line=0.5, height=2.0)
        return cls((60.0, 1_000.0), line=1.0, height=0.4)

    def knots(
        self, num_clear: float, num_columns: int, num_smooth: int
    ) -> tuple[float, ...]:
        """Returns the knots of every curve, () for a linear model.

        Args:
            num_clear: the number of records, over the noise multiplier and the number
                of outputs.
            num_columns: the number of lines.
            num_smooth: the number of columns that may bend.
        """
        coarse, fine = self.records
        for num_records, knots in ((fine, _FINE), (coarse, _COARSE)):
            num_weights = num_columns + num_smooth * (len(knots) - 1)
            if num_smooth and num_clear >= num_records * num_weights:
                return knots
        return ()


def knots_of(
    loss: LinearLoss,
    num_samples: int,
    num_columns: int,
    num_smooth: int,
    noise_multiplier: float,
) -> tuple[float, ...]:
    """Returns the knots of every curve by public numbers, () for a linear model."""
    num_clear = num_samples / (noise_multiplier * loss.num_outputs)
    return Prior.of(loss).knots(num_clear, num_columns, num_smooth)


def dp_additive_model(
    loss: str | LinearLoss,
    data: tuple[ArrayLike, ArrayLike],
    *,
    key: Key,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    smooth: Sequence[int],
    intercept: int | None = None,
    offsets: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    max_weight: float = 1.0,
    execution: Execution = Execution(),
) -> Solution:
    """Fits a sum of functions of single columns, without hyperparameters.

    Minimises the mean of weight·loss(f(x) + offset, y). f is linear, but that each
    column of `smooth` also adds a function of its own. It is linear between public
    knots, zero at zero and constant beyond the last knots, so that it is bounded. The
    line stands beside it: a target that is linear in a heavy-tailed column, far tails
    included, is in the model.

    These functions are sums of hat functions, one for each knot but zero. So the model
    is linear in its weights, and `dp_linear_model` fits them to features that each
    record gives by itself. The number of knots, at most 11, follows from public
    numbers: the more weights and noise there are for the number of records, the fewer.
    At a small budget there are none, and the model is the linear one. Targets that are
    no labels need more records for them, because they may be nearly all noise.

    Args:
        loss: as of `dp_linear_model`.
        data: (features, targets), shapes (n, d) and (n,); n is public. The columns of
            `smooth` should be in public units: zero a usual value, and most values
            within ±2. NaN counts as zero. Targets as of `dp_linear_model`.
        key: a typed key.
        epsilon: privacy of all that is released, positive.
        delta: privacy of all that is released, in (0, 1).
        noise_multiplier: in place of epsilon, as of `dp_linear_model`.
        smooth: the public indices of the columns that may bend. A column of two values
            needs no more than its line.
        intercept: the public index of a column of ones, whose values are not read, or
            None.
        offsets: as of `dp_linear_model`.
        weights: as of `dp_linear_model`.
        max_weight: as of `dp_linear_model`.
        execution: as of `dp_linear_model`.

    Returns:
        A `Solution`, which has `predict` and `shapes`, the curve of each column. Its
        params are `Curves`. Its stats are those of `dp_linear_model` for the features
        of all lines and hat functions.

    Raises:
        ValueError: where an argument is out of its range, or shapes do not fit; before
            any computation, never because of the values of the data.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input, stats and all iterates
        included: that of `dp_linear_model`, because the features of a record are a
        function of this record alone, and knots follow from public numbers. The loss,
        smooth and the intercept's index must not depend on the data.

    Example:
        >>> import jax, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> features = np.c_[rng.standard_t(3, (10_000, 2)), np.ones(10_000)]
        >>> means = np.minimum(np.abs(features[:, 0]), 2) + features[:, 1]
        >>> solution = dp_additive_model(
        ...     "squared", (features, means + rng.standard_t(3, 10_000)),
        ...     key=jax.random.key(0), epsilon=2.0, delta=1e-5, smooth=[0], intercept=2)
        >>> error = solution.predict(features) - means
        >>> print(f"{np.sqrt(np.mean(error**2)):.1f} of {np.std(means):.1f}")
        0.3 of 1.8

    Reference:
        Hastie, Tibshirani (1986), Generalized additive models; Nori, Caruana, Bu, Shen,
        Kulkarni (2021), Accuracy, interpretability, and differential privacy via
        explainable boosting. The fit: as of `dp_linear_model`.
    """
    model = named(loss)
    check_noise(epsilon, delta, noise_multiplier)
    multiplier = noise_multiplier
    if multiplier is None:
        assert epsilon is not None
        multiplier = accounting.noise_multiplier(epsilon, delta, num_steps=1)
    _validate.require(
        isinstance(data, tuple | list) and len(data) == 2,
        "data",
        type(data),
        "a pair (features, targets)",
    )
    features, targets = _validate.linear_data(*data)
    num_samples, num_columns = features.shape
    column = None
    if intercept is not None:
        column = _column("intercept", intercept, num_columns)
    bent = _smooth(smooth, num_columns, column)
    prior = Prior.of(model)
    knots = knots_of(model, num_samples, num_columns, len(bent), multiplier)
    solution = dp_linear_model(
        model,
        (_expanded(features, bent, knots, prior), targets),
        key=key,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        intercept=column,
        offsets=offsets,
        weights=weights,
        max_weight=max_weight,
        execution=execution,
    )
    curves = _curves(solution.params, num_columns, bent, knots, column, prior)
    return Solution(curves, solution.privacy, solution.stats)


def _column(name: str, index: int, num_columns: int) -> int:
    """Returns the index of a column, from zero on."""
    is_index = isinstance(index, int | np.integer) and not isinstance(index, bool)
    _validate.require(
        is_index and -num_columns <= index < num_columns,
        name,
        index,
        f"the index of one of {num_columns} columns",
    )
    return int(index) % num_columns


def _smooth(
    smooth: Sequence[int], num_columns: int, intercept: int | None
) -> tuple[int, ...]:
    """Returns the indices of columns that may bend, from zero on."""
    _validate.require(
        isinstance(smooth, Sequence | np.ndarray) and not isinstance(smooth, str),
        "smooth",
        smooth,
        "a sequence of indices of columns",
    )
    bent = tuple(_column("smooth", index, num_columns) for index in smooth)
    _validate.require(
        len(set(bent)) == len(bent) and intercept not in bent,
        "smooth",
        smooth,
        "of different columns, without the intercept's",
    )
    return bent


@partial(jax.jit, static_argnums=(1, 2, 3))
def _expanded(
    features: jax.Array, smooth: tuple[int, ...], knots: tuple[float, ...], prior: Prior
) -> jax.Array:
    """Returns lines and hat functions of the features, each record by itself."""
    if not knots:
        return features
    columns = jnp.asarray(smooth)
    heights = prior.height * hats(held(features[:, columns]), knots)
    heights = jnp.delete(heights, knots.index(0.0), axis=-1)
    lines = features.at[:, columns].multiply(prior.line)
    return jnp.concatenate([lines, heights.reshape(len(features), -1)], axis=1)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _curves(
    weights: jax.Array,
    num_columns: int,
    smooth: tuple[int, ...],
    knots: tuple[float, ...],
    intercept: int | None,
    prior: Prior,
) -> Curves:
    """Returns the curves of the weights of lines and hat functions."""
    slopes, outputs = weights[:num_columns], weights.shape[1:]
    if knots:
        slopes = slopes.at[jnp.asarray(smooth)].multiply(prior.line)
    num_hats = max(len(knots) - 1, 0)
    heights = weights[num_columns:].reshape(len(smooth), num_hats, *outputs)
    heights = prior.height * heights
    if knots:
        heights = jnp.insert(heights, knots.index(0.0), 0.0, axis=1)
    return Curves(slopes, heights, knots, smooth, intercept)
