"""The defaults of `PrivateTraining`.

All of it follows from public numbers: n, the number of steps, the size of the model,
and the noise that the budget needs. The constants are those of "adaptive clipping,
quantile by the noise" in benchmarks/DEEP.md, which describes the trials behind them.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg

from dpjax import _validate
from dpjax._tree import like
from dpjax._types import Scalar
from dpjax.batching import Batching, CyclicPoisson, Poisson
from dpjax.estimators import AdaptiveThreshold, Clipping
from dpjax.mechanisms import Strategy

NUM_STEPS = 200
_BATCHES = 16  # expected batches to an epoch
_FIRST, _SPEED = 0.03, 0.3  # the first clip norm; how fast its logarithm moves
_LOWER, _UPPER = 1e-4, 1e4  # of clip norms
_LEAST_CLIPPED, _MOST_CLIPPED = 0.05, 0.5  # shares of gradients, by the noise
_PEAK, _LEAST_NOISE = 1.3, 0.1  # of the rate: one over the other and the noise's norm
_RISE = 0.1  # share of the steps in which the rate rises
_LOSS_QUANTILE = 0.9  # of the losses within the bound of the monitor


def default_batching(num_samples: int, noise: Strategy | None) -> Batching:
    """Returns Poisson batches of n / 16 rows; with correlated noise cyclic ones."""
    size = max(1, num_samples // _BATCHES)
    if noise is None:
        return Poisson(size)
    rule = f"given with {noise}, which has more than {_BATCHES} bands"
    _validate.require(noise.num_bands <= _BATCHES, "batching", None, rule)
    return CyclicPoisson(size, cycle_length=noise.num_bands)


def adaptive_clipping(noise_norm: Scalar) -> AdaptiveThreshold:
    """Returns clipping at a private quantile: the more noise, the lower.

    Args:
        noise_norm: of a step's noise, in units of the clip norm.
    """
    return _adaptive(quantile(noise_norm))


def quantile(noise_norm: Scalar) -> Scalar:
    """Returns the quantile of norms that the clip norm follows: 1 - nu, nearly."""
    return 1 - jnp.clip(noise_norm, _LEAST_CLIPPED, _MOST_CLIPPED)


def peak_rate(noise_norm: Scalar) -> Scalar:
    """Returns the largest rate, of steps in units of the clip norm."""
    return _PEAK / (_LEAST_NOISE + noise_norm)


def loss_clipping() -> AdaptiveThreshold:
    """Returns clipping of losses at a private quantile of their sizes."""
    return _adaptive(_LOSS_QUANTILE)


def _adaptive(quantile: Scalar) -> AdaptiveThreshold:
    return AdaptiveThreshold(
        Clipping(_FIRST),
        lower=_LOWER,
        upper=_UPPER,
        quantile=quantile,
        learning_rate=_SPEED,
    )


def descend(
    num_steps: int, relative_norm: Scalar
) -> optax.GradientTransformationExtraArgs:
    """Returns steps whose rate rises in the first tenth, then falls to zero.

    Args:
        num_steps: T.
        relative_norm: the norm of a step's noise over the largest norm of a gradient.
            The rate is for updates in units of that largest norm. The update gets the
            norm of the noise as the keyword noise_norm.
    """

    def init(params):
        del params
        return jnp.zeros((), jnp.int32)

    def update(updates, state, params=None, *, noise_norm: Any = None, **extra_args):
        del params, extra_args
        peak = jnp.asarray(peak_rate(relative_norm))
        now = like(state, peak)
        rise = jnp.minimum(1, (now + 1) / (_RISE * num_steps))
        unit = like(noise_norm, peak) / relative_norm
        rate = -peak * rise * (1 - now / num_steps) / unit
        return jax.tree.map(lambda x: like(rate, x) * x, updates), state + 1

    return optax.GradientTransformationExtraArgs(init, update)


@functools.lru_cache(maxsize=32)
def relative_noise(noise: Strategy | None) -> float:
    """Returns by how much more independent noise would move the sum of all steps alike.

    That of C^-1 z over that of z: |C^-T 1| / sqrt(T); 1 without a strategy.
    """
    if noise is None:
        return 1.0
    ones = np.ones(noise.num_steps)
    row = scipy.linalg.solve_triangular(noise.matrix(), ones, lower=True, trans=1)
    return float(np.linalg.norm(row)) / math.sqrt(noise.num_steps)
