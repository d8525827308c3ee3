"""The features of an additive model, and the curves of their weights."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.solvers.additive._knots import FINE, FINEST, HEIGHT, LINE, NARROW
from dpjax.solvers.training._curves import Curves, bounded, hats


@dataclass(frozen=True)
class Hats:
    """Lines and hat functions of columns (n, c), each record by itself.

    Lines have another unit beyond the last knots, the tail. With the hat functions they
    still add up to straight lines. With a tail of zero they would be sums of hat
    functions alone, and are left out.

    The last columns may be others once more. Hat functions of the finest knots are made
    of these. They stand beside the wider ones, not in their place: what is smooth is
    still the sum of few functions.

    Attributes:
        smooth: the columns that bend.
        knots: of all of them.
        tail: the unit of lines beyond the last knots.
        num_finest: how many columns are at the end.
    """

    smooth: tuple[int, ...]
    knots: tuple[float, ...]
    tail: float
    num_finest: int = 0

    def __call__(self, columns: jax.Array) -> jax.Array:
        """Returns the functions, shape (n, d)."""
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


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def curves_of(
    weights: jax.Array,
    num_columns: int,
    smooth: tuple[int, ...],
    tail: float | None,
    knots: tuple[float, ...],
    intercept: int | None,
) -> Curves:
    """Returns the curves of the weights of `Hats`; without tail, of lines."""
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
    heights = jnp.insert(HEIGHT * heights, knots.index(0.0), 0.0, axis=1)
    if tail != LINE:
        within = (LINE - tail) * jnp.asarray(knots, lines.dtype)
        heights = heights + jnp.moveaxis(jnp.multiply.outer(within, lines), 0, 1)
    return Curves(slopes, heights, knots, smooth, intercept)


@jax.jit
def at_finest(curves: Curves, places: jax.Array, weights: jax.Array) -> Curves:
    """Returns curves at the finest knots, with narrow functions of some of them.

    Args:
        curves: at `FINE` knots.
        places: shape (c,), those curves.
        weights: of narrow functions, shape (c·m,) or (c·m, K).
    """
    between = hats(jnp.asarray(FINEST, weights.dtype), FINE)
    heights = jnp.einsum(
        "mj,kj...->km...", between, curves.heights, precision="highest"
    )
    narrow = HEIGHT * weights.reshape(len(places), len(NARROW), *weights.shape[1:])
    heights = heights.at[places[:, None], jnp.asarray(NARROW)].add(narrow)
    return Curves(curves.slopes, heights, FINEST, curves.smooth, curves.intercept)
