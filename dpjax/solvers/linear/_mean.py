"""Robust means of records, for noise that one program draws."""

import jax
import jax.numpy as jnp

from dpjax._sharding import AxisName
from dpjax._sums.exact import Unrounded
from dpjax._types import Scalar
from dpjax.estimators import Estimator
from dpjax.mechanisms._additive import padded


def mean_and_stddevs(
    estimator: Estimator,
    samples: jax.Array,
    noise_multiplier: Scalar,
    axis_name: AxisName | None,
) -> tuple[Unrounded, jax.Array]:
    """Returns a robust mean, padded, and the stddevs that its Gaussian noise must have.

    Args:
        estimator: the robust mean.
        samples: shape (n, ...).
        noise_multiplier: stddev over the l2 sensitivity, under replace-one.
        axis_name: the mesh axes over which rows are sharded.
    """
    mean = estimator.unrounded(samples, axis_name=axis_name)
    size = samples.size // len(samples)
    noise = estimator.noise_parameters(noise_multiplier, len(samples), size)
    entries = padded(mean)
    return entries, jnp.full_like(entries.high, noise["stddev"])
