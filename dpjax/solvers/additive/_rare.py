"""Which columns are mostly zero, a private choice."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._types import Key, Scalar
from dpjax.solvers.additive._knots import MOST_FINEST, STEP
from dpjax.solvers.linear._kind import Examples
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean

SHARE = 0.005  # of the budget
# So few records beside zero that functions of them cost little where they gain nothing.
# Of capital gains and losses 5 to 9 in 100 are not zero, of most columns half or more.
_FEW = 0.15


@partial(jax.jit, static_argnums=0)
def rare_columns(
    axis_name: Any, examples: Examples, key: Key, multiplier: Scalar
) -> tuple[jax.Array, jax.Array]:
    """Releases which columns are mostly zero: their places, and how many these are.

    Of more than `MOST_FINEST` those with the most records beside zero, which have the
    most to gain. Places are as many as that, or as columns; the first are mostly zero.

    Privacy:
        Under replace-one one Gaussian mechanism of the multiplier. A record gives its
        weight in [0, 1] times numbers in [-0.15, 0.85], one for each of k columns, so
        that its norm is at most 0.85 sqrt(k), to which it is clipped, and two records
        are apart by at most sqrt(k).
    """
    features, weights = examples.features, jnp.clip(examples.weights, 0.0, 1.0)

    def products(sums: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        beside, weight = record
        return weight * jnp.sum(sums * (beside - _FEW))

    # Zero is what the narrowest functions do not tell from it.
    beside = (jnp.abs(features) > STEP / 2).astype(features.dtype)
    shape = jnp.zeros(features.shape[1], features.dtype)
    clipping = SetClipping((1 - _FEW) * math.sqrt(features.shape[1]), 1 / (1 - _FEW))
    args = clipping, (beside, weights), multiplier, key, axis_name
    means = noisy_mean(*args, product=products, weights=shape)
    is_rare = means < 0
    places = jnp.argsort(jnp.where(is_rare, -means, jnp.inf))[:MOST_FINEST]
    return places, jnp.minimum(jnp.sum(is_rare), len(places))
