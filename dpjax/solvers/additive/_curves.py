"""Knots of curves, from public numbers, and the hat functions that curves add up."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.losses import LinearLoss
from dpjax.solvers.linear._kind import ModelKind
from dpjax.solvers.training._curves import Curves, bounded, hats

COARSE = (-2.0, 0.0, 2.0)
_BANDED = (COARSE, (-2.0, -1.0, 0.0, 1.0, 2.0))  # with intervals
FINE = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
# With a log link: values of a declared range are spread over ±2.
FINE_LOG_LINK = tuple(sorted((*FINE, -1.5, 1.5)))
# The spacing of narrow hat functions, and the number of columns that may have them:
# each of these needs many weights.
STEP, MOST_FINEST = 1 / 16, 2
FINEST = tuple(sorted({*FINE, *(STEP * step for step in range(-32, 33))}))
NARROW = tuple(place for place, knot in enumerate(FINEST) if knot not in FINE)
# The number of records for each weight and unit of the noise multiplier that they need.
FINEST_RECORDS = 60.0
# The units of lines and hat functions. Steps that are equal in all weights move a
# function by the square of its unit.
LINE, HEIGHT = 0.5, 2.0
# With w weights, noise hides no second derivative if the records, over the noise
# multiplier and w^1.5, are at least this many.
_CLEAR_RECORDS = 190.0
# Unit of lines beyond the fine knots, for labels. With a small unit large values use
# less of a record's clip norm, but these lines are fitted later.
TAIL = 0.05
# The largest share of the budget for a gain, and the largest noise of a gain by which
# it is still chosen. Gains of real sets are 5 to 20 times 1e-4 in these units.
MOST_SHARE, _MOST_NOISE = 0.05, 3e-4
# The least gain for curves of labels, in expected squares of the noise in all weights
# of curves, and the largest one.
_NOISES, _MOST_GAIN = 30.0, 4e-4
# The ratio of the bound of targets to the clip norm of slopes at which the least gain
# for other curves is (noise multiplier + 1) / n. Elsewhere it is proportional to the
# ratio, which is large for heavy tails: curves then follow the bias of clipped slopes.
TAIL_RATIO = 10.0
# The smallest factor by this ratio, and the largest, for losses without the ratio too.
TAIL_FACTORS = 0.5, 5.0
# The records that a weight of labels needs, for fine and coarse knots: a factor of the
# noise multiplier, and a number to add.
LABEL_RECORDS = (12.0, 17.0), (5.0, 100.0)
# The same for coarse knots whose hat functions have second moments of their own, which
# then are more exact, but without their correlations with other columns. It is the
# same for any number of classes.
BEND_RECORDS = 40.0, 50.0


def is_seen(num_samples: int, num_functions: int, noise_multiplier: float) -> bool:
    """Returns whether the noise lets gains be seen, by public numbers."""
    noise = gain_noise(num_samples, num_functions, noise_multiplier)
    return noise <= _MOST_NOISE * MOST_SHARE


def gain_noise(num_samples: int, num_functions: int, noise_multiplier: float) -> float:
    """Returns the standard deviation of a gain released with the whole budget."""
    return _variance(num_samples, noise_multiplier) * math.sqrt(2 * num_functions)


def _variance(num_samples: int, noise_multiplier: float) -> float:
    """Returns the variance of a mean, in squares of the clip norm, never zero."""
    return max(2 * noise_multiplier / num_samples, 1e-15) ** 2


def least_gain(
    kind: ModelKind, num_samples: int, num_weights: int, noise_multiplier: float
) -> float:
    """Returns the least gain, in squares of the clip norm, for curves to be fitted.

    The curves have `num_weights` weights. Without labels, a factor for tails follows.
    """
    by_records = (noise_multiplier + 1) / num_samples
    if not kind.has_labels:
        return by_records
    by_noise = _NOISES * num_weights * _variance(num_samples, noise_multiplier)
    return min(max(by_records, by_noise), _MOST_GAIN)


def knots_of(
    loss: LinearLoss,
    num_samples: int,
    num_columns: int,  # of the data
    num_smooth: int,  # of the columns, those that may have curves
    noise_multiplier: float,  # of all releases together
) -> tuple[float, ...]:
    """Returns the positions of the knots of every curve, () for a linear model.

    They are the finest for which there are enough records for all weights. Labels and
    log links need fewer, because they bound the influence of a record or its relative
    error. Other targets may be nearly all noise, with heavy tails, which curves overfit
    sooner than lines do.
    """
    # If the noise would hide the gain, curves have at most the last number of knots.
    if loss.num_outputs > 1 or loss.target_range == (-1.0, 1.0):
        (fine, coarse), most = LABEL_RECORDS, len(COARSE)
    elif loss.has_log_link:
        fine, coarse, most = (35.0, 0.0), (40.0, 0.0), len(FINE_LOG_LINK)
    else:
        fine, coarse, most = (25.0, 0.0), (35.0, 0.0), 0
    seen = is_seen(num_samples, 2 * num_smooth * loss.num_outputs, noise_multiplier)
    finest = FINE_LOG_LINK if loss.has_log_link else FINE
    for (factor, added), knots in ((fine, finest), (coarse, COARSE)):
        num_weights = num_columns + num_smooth * (len(knots) - 1)
        num_needed = num_weights * (factor * noise_multiplier + added)
        is_clear = num_samples >= num_needed * loss.num_outputs
        if num_smooth and is_clear and (seen or len(knots) <= most):
            return knots
    return ()


def may_be_split(
    num_samples: int, num_columns: int, num_smooth: int, noise_multiplier: float
) -> bool:
    """Returns whether records suffice for coarse knots with moments of their own."""
    factor, added = BEND_RECORDS
    num_weights = num_columns + num_smooth * (len(COARSE) - 1)
    return num_samples >= num_weights * (factor * noise_multiplier + added)


def banded_knots_of(
    num_samples: int, num_columns: int, num_smooth: int, noise_multiplier: float
) -> tuple[float, ...]:
    """Returns the knots of curves with confidence bands, () for a linear model.

    These are the most knots with which noise usually hides no eigenvector of the
    released Hessian, so that bands are finite; `num_smooth` columns may have curves.
    """
    for knots in reversed(_BANDED):
        num_weights = num_columns + num_smooth * (len(knots) - 2)  # without lines
        num_needed = _CLEAR_RECORDS * noise_multiplier * num_weights**1.5
        if num_smooth and num_samples >= num_needed:
            return knots
    return ()


@dataclass(frozen=True)
class Hats:
    """Makes lines and hat functions of columns (n, c), each record by itself.

    Beyond the last knots lines have another unit, the tail; with the hat functions they
    still add up to straight lines. With a tail of zero, lines are left out, because
    they would be sums of hat functions. The last `num_finest` columns may repeat
    columns: they get narrow hat functions beside the wider ones, so that smooth curves
    are still sums of few functions.
    """

    smooth: tuple[int, ...]
    knots: tuple[float, ...]
    tail: float
    num_finest: int = 0

    def __call__(self, columns: jax.Array) -> jax.Array:
        """Returns features (n, d) of columns (n, c): lines, then hat functions."""
        # A linear model of these features is a sum of curves, one for each column.
        knots, tail, places = self.knots, self.tail, jnp.asarray(self.smooth)
        features, again = jnp.split(columns, [columns.shape[1] - self.num_finest], 1)
        values = bounded(features[:, places])
        heights = HEIGHT * hats(values, knots)
        heights = jnp.delete(heights, knots.index(0.0), axis=-1)
        if tail == 0:
            lines = jnp.delete(features, places, axis=1, assume_unique_indices=True)
        else:
            within = jnp.clip(values, knots[0], knots[-1])
            lines = features.at[:, places].set(tail * values + (LINE - tail) * within)
        narrow = HEIGHT * hats(bounded(again), FINEST)[..., jnp.asarray(NARROW)]
        functions = heights, narrow
        flat = [each.reshape(len(columns), -1) for each in functions]
        return jnp.concatenate([lines, *flat], axis=1)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5, 6, 7))
def curves_of(
    weights: jax.Array,  # (d,) or (d, K)
    num_columns: int,  # of the data
    smooth: tuple[int, ...],  # the columns with curves
    tail: float | None,  # unit of lines beyond the knots; None: lines alone
    knots: tuple[float, ...],  # of every curve
    intercept: int | None,  # index of its column
    line: float = LINE,  # unit of lines between the knots
    height: float = HEIGHT,  # unit of hat functions
) -> Curves:  # for predictions
    """Returns, as curves, a linear model of the lines and hat functions of `Hats`.

    `Curves` has slopes of lines, in units of the columns, and heights at the knots.
    With a tail of 0 the columns of `smooth` had no lines among the features.
    """
    outputs = weights.shape[1:]
    if tail == 0:
        straight = np.delete(np.arange(num_columns), smooth)
        slopes = jnp.zeros((num_columns, *outputs), weights.dtype)
        slopes = slopes.at[straight].set(weights[: len(straight)])
        weights = jnp.concatenate([slopes, weights[len(straight) :]])
    slopes = weights[:num_columns]
    if tail is None or not knots:
        heights = jnp.zeros((len(smooth), len(knots), *outputs), weights.dtype)
        return Curves(slopes, heights, knots, smooth, intercept)
    lines = slopes[jnp.asarray(smooth)]
    slopes = slopes.at[jnp.asarray(smooth)].multiply(tail)
    heights = weights[num_columns:].reshape(len(smooth), len(knots) - 1, *outputs)
    heights = jnp.insert(height * heights, knots.index(0.0), 0.0, axis=1)
    if tail != line:
        within = (line - tail) * jnp.asarray(knots, lines.dtype)
        heights = heights + jnp.moveaxis(jnp.multiply.outer(within, lines), 0, 1)
    return Curves(slopes, heights, knots, smooth, intercept)


@partial(jax.jit, static_argnums=1)
def at_knots(curves: Curves, knots: tuple[float, ...]) -> Curves:
    """Returns the same functions, with heights at more knots.

    Models of other knots, among which one is chosen, then have equal shapes. `knots`
    must include the curves' own; curves without any are lines.
    """
    slopes, heights = curves.slopes, curves.heights
    if curves.knots:
        between = hats(jnp.asarray(knots, slopes.dtype), curves.knots)
        heights = jnp.einsum("mj,kj...->km...", between, heights, precision="highest")
    else:
        shape = len(curves.smooth), len(knots), *slopes.shape[1:]
        heights = jnp.zeros(shape, slopes.dtype)
    return Curves(slopes, heights, knots, curves.smooth, curves.intercept)


@jax.jit
def at_finest(curves: Curves, places: jax.Array, weights: jax.Array) -> Curves:
    """Returns the same curves at the knots `FINEST`, plus narrow hat functions.

    Args:
        curves: curves at `FINE` knots.
        places: shape (c,), indices of curves.smooth: curves with narrow functions.
        weights: fitted weights of m narrow functions each, shape (c·m,) or (c·m, K).
    """
    heights = at_knots(curves, FINEST).heights
    narrow = HEIGHT * weights.reshape(len(places), len(NARROW), *weights.shape[1:])
    heights = heights.at[places[:, None], jnp.asarray(NARROW)].add(narrow)
    return Curves(curves.slopes, heights, FINEST, curves.smooth, curves.intercept)
