"""A private center and scale for every column, from its quantiles."""

import math
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._types import ArrayLike, Key, Scalar, SelectionName
from dpjax.solvers.statistics._ranks import (
    EDGES,
    SIZES,
    as_scores,
    checked_samples,
    choose,
    counts_of,
    num_to_replace,
    rank_error_of,
    rank_of,
    scores_of,
)
from dpjax.solvers.training._calibration import Choices
from dpjax.solvers.training._solution import Solution

_WITHIN_ONE_SCALE = 0.6827  # of a normal law, within one standard deviation
_SUPPORT = 0.25  # share of records that lie near a scale, a fifth of it to five times
_NEAR = 35  # bins of the default, a factor of five
_DISTANCE_EDGES = np.concatenate([[-SIZES[0]], SIZES])


def _roundest(low: float, high: float) -> float:
    """Returns the shortest decimal in (low, high]: 0, 1, 7, 2000, 0.5."""
    if low < 0 < high:
        return 0.0
    for exponent in range(9, -10, -1):
        multiple = math.floor(Fraction(high) / Fraction(10) ** exponent)
        number = float(Fraction(10) ** exponent * multiple)
        if low < number <= high:
            return number
    raise AssertionError("a bin holds a decimal of its own size")


@cache
def _roundest_of_bins() -> np.ndarray:
    return np.array(list(map(_roundest, EDGES[:-1], EDGES[1:])))


def dp_center_and_scale(
    samples: ArrayLike, *, key: Key, epsilon: float, delta: float = 0.0
) -> Solution:
    """Releases for each column a center and a scale that standardize it.

    The center is a private median, as the roundest number of its bin, so a column that
    mostly repeats a number such as 0, 1 or 7 is centered on that number. The scale is a
    private 68 per cent quantile of |x - center|: for a normal distribution the standard
    deviation. It is 1 for a column that mostly repeats its center. A scale must have
    records near it: a quarter of all between a fifth of it and five times it. This
    excludes numbers between two values that a column repeats, which would be quantiles
    as well.

    Args:
        samples: shape (n, d), real; n is public. Missing values are NaN.
        key: a typed key.
        epsilon: privacy of all columns together, positive.
        delta: privacy of all columns together, in [0, 1).

    Returns:
        A `Solution` with params (centers, scales), each of shape (d,), in units of the
        columns; scales are positive. Its stats hold selection_epsilon, of one of the
        2d choices; rank_error, which with probability 0.99 bounds the error in rank of
        all of them; and is_informative, false if that is a quarter of the records or
        more: a scale may then have no records near it. All follow from n, d and the
        budget.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input. A record has a value in
        each column: 2d choices as in `dp_quantile`, each scale after its center, share
        the budget (`accounting.selection_epsilon`), by whichever mechanism gives more
        epsilon to each. Bins are the defaults of `dp_quantile`. The score of a scale is
        the smaller of the quantile's u(j) and near(j) - n/4, where near(j) counts the
        records from a fifth of the bin to five times it, and for the bin at zero the
        records in it. Replacing a record moves both by at most 1, so it moves their
        minimum by at most 1, and the difference of two scores by 2.

    Example:
        >>> import jax, numpy as np
        >>> normal = np.random.default_rng(0).normal(size=(20_000, 2))
        >>> samples = np.array([2000.0, -3.0]) + np.array([50.0, 0.1]) * normal
        >>> centers, scales = dp_center_and_scale(
        ...     samples, key=jax.random.key(0), epsilon=0.5).params
        >>> print(np.abs((np.array(centers) - [2000.0, -3.0]) / [50.0, 0.1]) < 1)
        [ True  True]

    Reference:
        As for `dp_quantile`.
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    check_key_of_rows(key, samples)
    samples = checked_samples(samples, num_axes=2)
    num_samples, num_choices = samples.shape[0], 2 * samples.shape[1]
    choices = Choices.tight(num_choices, epsilon, delta)
    params = _standardize(choices.mechanism, key, samples, choices.epsilon)
    rank_error = rank_error_of(choices.epsilon, num_choices * (EDGES.size - 1))
    stats: dict[str, Scalar] = {
        "selection_epsilon": choices.epsilon,
        "rank_error": rank_error,
        "is_informative": rank_error < _SUPPORT * num_samples,
    }
    return Solution(params, choices.guarantee(num_samples), stats)


@partial(jax.jit, static_argnums=0)
def _standardize(
    mechanism: SelectionName, key: Key, samples: jax.Array, epsilon: Scalar
) -> tuple[jax.Array, jax.Array]:
    edges, distance_edges, roundest = (
        jnp.asarray(table, samples.dtype)
        for table in (EDGES, _DISTANCE_EDGES, _roundest_of_bins())
    )

    def of_column(key: Key, column: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = jax.random.split(key)
        scores = scores_of(column, edges, 0.5)
        center = roundest[choose(mechanism, first, scores, epsilon)]
        distances = jnp.abs(column - center)
        scores = _scale_scores(distances, distance_edges)
        index = choose(mechanism, second, scores, epsilon)
        scale = distance_edges[index] / 2 + distance_edges[index + 1] / 2
        return center, jnp.where(index > 0, scale, 1)  # the first bin is at zero

    keys = jax.random.split(key, samples.shape[1])
    return jax.vmap(of_column, (0, 1))(keys, samples)


def _scale_scores(samples: jax.Array, edges: jax.Array) -> jax.Array:
    """Returns the scores of scales: their u(j), or less where too few lie near."""
    counts = counts_of(samples, edges, _WITHIN_ONE_SCALE)
    below = jnp.pad(jnp.cumsum(counts, dtype="int32"), (1, 0))  # each edge
    bins = np.arange(counts.size)
    first, last = np.maximum(bins - _NEAR, 1), np.minimum(bins + _NEAR, bins[-1])
    first[0] = last[0] = 0  # nothing is near to zero but zero
    near = below[last + 1] - below[first]
    lacking = math.ceil(_SUPPORT * samples.size) - near
    rank = rank_of(_WITHIN_ONE_SCALE, samples.size)
    return as_scores(jnp.maximum(num_to_replace(counts, rank), lacking))
