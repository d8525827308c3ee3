"""Bounded means with noise, of vectors from a ball or a set of known diameter."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import AxisName
from dpjax._sums.fold import Unrounded
from dpjax._tree import register
from dpjax._types import Key, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee, Sampling, noise_multiplier
from dpjax.accounting._subsampling import gaussian_event
from dpjax.estimators import Clipping, Estimator
from dpjax.gradients import streamed_grad
from dpjax.mechanisms._additive import padded
from dpjax.transforms import privatize

# Records are w (c t, 1), with w in [0, 1] and t in [-1, 1]. At c = 1 / sqrt(3) the
# second entry costs nothing: the set is an equilateral triangle, and opposite numbers t
# are as far apart as any two vectors of it.
BESIDE_WEIGHT = 0.577

# Models divide by the noise, so that it is never zero. With this multiplier it is lost
# in the rounding of float32.
NOISELESS = 1e-6


@register("l2_clip_norm")
@dataclass(frozen=True)
class SetClipping(Clipping):
    """Averages clipped vectors from a set that contains all points between it and zero.

    Sensitivity: replacing one of n records moves the mean by at most the diameter / n
    in the l2 norm, adding or removing one by l2_clip_norm / n; rounding is added as for
    `Clipping`. Proof: `docs/privacy/proofs/sums.md`, 1.10.

    Attributes:
        l2_clip_norm: see `Clipping`.
        relative_diameter: the largest l2 distance of two vectors of the set within the
            clip norm, in clip norms, at least 1. It is sqrt(2) for vectors without
            negative entries, and 1 for numbers that are not negative.
    """

    relative_diameter: float = math.sqrt(2)

    @property
    def diameter(self) -> float:
        """Returns the set's diameter in clip norms, rounded up: see `NormBounded`."""
        return self.relative_diameter * ROUNDED_UP


# The longest side of the triangle at c = 1 / sqrt(3), a little above `BESIDE_WEIGHT`.
WEIGHTED = SetClipping(2 / math.sqrt(3), 1.0)


def one_gaussian(
    epsilon: float,
    delta: float,
    num_samples: int,
    unit: str = "record",
    num_releases: int = 1,
) -> tuple[float, PrivacyGuarantee]:  # multiplier, guarantee
    """Returns the multiplier and guarantee of Gaussian releases that share a budget.

    The multiplier, stddev / sensitivity, is for one release with the whole budget, or
    for each of `num_releases` equal releases. A release with the share s of the budget
    needs multiplier / sqrt(s). `unit` names what is protected. At epsilon = inf nothing
    is, and the multiplier is `NOISELESS`.
    """
    if epsilon == math.inf:
        return NOISELESS, PrivacyGuarantee.non_private()
    releases = Sampling(num_steps=num_releases)
    multiplier = noise_multiplier(epsilon, delta, releases)
    event = gaussian_event(multiplier, releases)
    return multiplier, PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples, unit=unit
    )


def noisy_mean(
    estimator: Estimator,  # bounds each record
    records: PyTree,  # private, leaves (n, ...)
    multiplier: Scalar,  # stddev of Gaussian noise / l2 sensitivity
    key: Key,
    axis_name: AxisName | None = None,  # mesh axes of the records
    *,
    product: Callable[[Any, Any], Any] | None = None,
    weights: PyTree = None,
) -> Any:
    """Releases the mean of records, a pytree like one record, with Gaussian noise.

    The estimator bounds each record. With `product(weights, record)`, a scalar that is
    linear in weights, its gradients are averaged instead, without being all in memory;
    `weights` are zeros with the shape of the mean.
    """
    samples, start = records, records
    if product is not None:
        samples, start = streamed_grad(product)(weights, records), weights
    release = privatize(
        estimator, noise_multiplier=multiplier, key=key, axis_name=axis_name
    )
    return release.update(samples, release.init(start))[0]


def mean_and_stddevs(
    estimator: Estimator,  # bounds each sample
    samples: jax.Array,  # private, (n, ...)
    noise_multiplier: Scalar,  # stddev / l2 sensitivity
    axis_name: AxisName | None,  # mesh axes of the samples
) -> tuple[Unrounded, jax.Array]:
    """Returns a robust mean before noise, and the stddevs of its Gaussian noise.

    Both are vectors padded with zeros; `gaussian_of_padded` releases the mean.
    """
    mean = estimator.unrounded(samples, axis_name=axis_name)
    size = samples.size // len(samples)
    noise = estimator.noise_parameters(noise_multiplier, len(samples), size)
    entries = padded(mean)
    return entries, jnp.full_like(entries.high, noise["stddev"])
