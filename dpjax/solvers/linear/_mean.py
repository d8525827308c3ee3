"""Robust means of records, for noise that one program draws."""

from typing import cast

import jax
import jax.numpy as jnp

from dpjax._sharding import AxisName
from dpjax._types import Scalar
from dpjax.estimators import Estimator
from dpjax.mechanisms._shared import padded
from dpjax.transforms import aggregate


def mean_and_stddevs(
    estimator: Estimator,
    samples: jax.Array,
    noise_multiplier: Scalar,
    axis_name: AxisName | None,
) -> tuple[jax.Array, jax.Array]:
    """Returns a robust mean, padded, and the stddevs that its Gaussian noise must have.

    Args:
        estimator: the robust mean.
        samples: shape (n, ...).
        noise_multiplier: stddev over the l2 sensitivity, under replace-one.
        axis_name: the mesh axes over which rows are sharded.
    """
    aggregation = aggregate(estimator, axis_name=axis_name)
    mean = cast(jax.Array, aggregation.update(samples, aggregation.init(samples))[0])
    stddev = noise_multiplier * estimator.sensitivity(len(samples), mean.size).l2
    entries = padded(mean)
    return entries, jnp.broadcast_to(jnp.asarray(stddev, mean.dtype), entries.shape)
