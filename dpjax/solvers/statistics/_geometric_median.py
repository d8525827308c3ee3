"""The private geometric median: by noisy descent, about private medians."""

import math
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import AxisName, gathered
from dpjax._types import Key
from dpjax.estimators import Clipping
from dpjax.solvers.statistics._noisy_quantile import noisy_size_histogram
from dpjax.solvers.statistics._untuned_mean import Round, Shares
from dpjax.transforms import privatize

_NUM_STEPS = 20
_CONSTANT = 4  # steps before their sizes begin to fall as 1/t


def shares_of(shape: tuple[int, ...], noise_multiplier: float) -> Shares:
    """Returns the shares: of a mean's, what would be its squares' is the steps'."""
    shares = Shares.of(shape, noise_multiplier)
    return shares._replace(squares=0.0, mean=shares.mean + shares.squares)


@partial(jax.jit, static_argnums=0)
def geometric_median(
    axis_name: AxisName | None, samples: jax.Array, key: Key, multipliers: Shares
) -> jax.Array:
    """Releases the point of the least mean distance, in round coordinates.

    From private medians it goes T steps along the mean of the unit vectors that point
    from it to the records, theta <- theta + eta_t L (mean + noise), where L is a
    private median of distances: the Hessian of the mean distance is about 1 / L. eta_t
    falls as 1/t after a few steps, so that the noise of all of them is averaged.

    Args:
        axis_name: the mesh axes over which rows are sharded.
        samples: shape (n, d), d >= 2.
        key: a typed key.
        multipliers: of `shares_of`.

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one: unit
        vectors are clipped to norm 1, whatever the records are, and T releases have
        sqrt(T) times the multiplier of their share.
    """
    *round_keys, length_key, steps_key = _keys.split(key, 4)
    place = Round.of(round_keys, samples, multipliers, axis_name)
    lengths = gathered(jnp.sqrt(jnp.sum(place.rows**2, axis=1)))
    seen = noisy_size_histogram(length_key, lengths, multipliers.lengths)
    length = seen.quantile(0.0, 0.5).astype(place.rows.dtype)
    release = privatize(
        Clipping(1.0),
        noise_multiplier=multipliers.mean * math.sqrt(_NUM_STEPS),
        key=steps_key,
        axis_name=axis_name,
    )

    def step(carry, count):
        theta, state = carry
        away = place.rows - theta[None]
        distance = jnp.sqrt(jnp.sum(away**2, axis=1, keepdims=True))
        mean, state = release.update(away / jnp.where(distance > 0, distance, 1), state)
        rate = jnp.minimum(1.0, _CONSTANT / (1.0 + count)).astype(theta.dtype)
        return (theta + rate * length * cast(jax.Array, mean), state), None

    start = jnp.zeros_like(place.rows[0]), release.init(place.rows)
    counts = jnp.arange(_NUM_STEPS, dtype="float32")
    (theta, _), _ = jax.lax.scan(step, start, counts)
    return place.back(theta)
