"""A bounded mean with Gaussian noise, which solvers release once."""

from collections.abc import Callable
from typing import Any

from dpjax._sharding import AxisName
from dpjax._types import Key, PyTree, Scalar
from dpjax.estimators import Estimator
from dpjax.gradients import streamed_grad
from dpjax.transforms import privatize


def noisy_mean(
    estimator: Estimator,
    records: PyTree,
    multiplier: Scalar,
    key: Key,
    axis_name: AxisName | None = None,
    *,
    product: Callable[[Any, Any], Any] | None = None,
    weights: PyTree = None,
) -> Any:
    """Returns the mean of records, each bounded, with Gaussian noise.

    Args:
        estimator: the bounded mean.
        records: leaves of shape (n, ...).
        multiplier: stddev over the l2 sensitivity, under replace-one.
        key: a typed key, used once here.
        axis_name: the mesh axes over which records are sharded.
        product: `product(weights, record)`, linear in the weights, whose gradients are
            averaged in place of the records, without being all in memory.
        weights: zeros of the shape of such a gradient.
    """
    samples, start = records, records
    if product is not None:
        samples, start = streamed_grad(product)(weights, records), weights
    release = privatize(
        estimator, noise_multiplier=multiplier, key=key, axis_name=axis_name
    )
    return release.update(samples, release.init(start))[0]
