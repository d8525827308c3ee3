"""Noise for smooth sensitivities: its heavy tails hide its own, private scale."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, PyTree, Scalar
from dpjax.mechanisms import _samplers
from dpjax.mechanisms._additive import as_float32, check

# 8 standard deviations of 9.4 each: the exponential stays finite in float32.
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-3, 8.0


def laplace_log_normal(
    key: Key, value: PyTree, *, scale: PyTree, sigma: Scalar
) -> PyTree:
    """Adds Laplace noise of log-normal scale: value + scale·L·exp(sigma·Y).

    L is standard Laplace, Y standard normal, both independent for every entry. The
    noise's standard deviation is scale·sqrt(2)·exp(sigma^2).

    Args:
        key: a typed key, used once here.
        value: array or pytree of floats, as for `gaussian`.
        scale: in units of value; a number, or a pytree prefix of value with arrays that
            broadcast to its leaves. Non-negative. It may depend on private data, so the
            values of arrays are not checked.
        sigma: standard deviation of the log scale, from 0.001 to 8, public; may be
            traced.

    Returns:
        A pytree like value.

    Raises:
        ValueError: If key is not a single typed key, sigma or a scale that is a Python
            number is out of range, scale does not fit value, or value has a leaf that
            is not floating point.

    Privacy:
        One entry with scale = S/s, where S is a t-smooth bound of its local
        sensitivity, is (1/2)epsilon^2-zCDP for

            epsilon = t / sigma + exp(1.5 sigma^2) s,

        under the relation of S; the costs of entries add up. Proof and calibration:
        `dpjax.accounting.smooth_noise_multiplier`. For real numbers: see
        `dpjax.mechanisms`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> noisy = laplace_log_normal(
        ...     jax.random.key(0), jnp.zeros(100_000), scale=2.0, sigma=0.5)
        >>> print(f"{noisy.std():.1f}")
        3.6

    Reference:
        Bun, Steinke (2019), "Average-case averages", Section 3.1.
    """
    return _add_noise(_laplace_log_normal, key, value, scale, sigma)


def arsinh_normal(key: Key, value: PyTree, *, scale: PyTree, sigma: Scalar) -> PyTree:
    """Adds noise whose arsinh is normal: value + scale·sinh(sigma·Y)/sigma.

    Y is standard normal, independent for every entry. The noise's standard deviation is
    scale·sqrt((exp(2 sigma^2) - 1) / 2) / sigma. Paper 001 uses sigma = 1.

    Its arguments, its result and its errors are those of `laplace_log_normal`; sigma is
    the shape of the noise.

    Privacy:
        One entry with scale = S/s, where S is a t-smooth bound of its local
        sensitivity, is (1/2)epsilon^2-zCDP for

            epsilon = s (4 + 3 sigma^2) / (6 sigma)
                      + sqrt(t (t/sigma^2 + 1/sigma + 2)),

        and sigma >= 0.3, under the relation of S; the costs of entries add up. Proof
        and calibration: `dpjax.accounting.smooth_noise_multiplier`. For small t,
        `laplace_log_normal` needs far less noise. For real numbers: see
        `dpjax.mechanisms`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> noisy = arsinh_normal(
        ...     jax.random.key(0), jnp.zeros(100_000), scale=2.0, sigma=1.0)
        >>> print(f"{noisy.std():.1f}")
        3.6

    Reference:
        Bun, Steinke (2019), "Average-case averages"; Wang, Xiao, Devadas, Xu (2020),
        Algorithm 2.
    """
    return _add_noise(_arsinh_normal, key, value, scale, sigma)


def _laplace_log_normal(key, sigma, *kind):
    laplace_key, normal_key = jax.random.split(key)
    spread = jnp.exp(sigma * _samplers.normal(normal_key, *kind))
    return _samplers.laplace(laplace_key, *kind) * spread


def _arsinh_normal(key, sigma, *kind):
    return jnp.sinh(sigma * _samplers.normal(key, *kind)) / sigma


def _add_noise(sampler, key, value, scale, sigma):
    check(key, value)
    _validate.within(_LEAST_SIGMA, _LARGEST_SIGMA, sigma=sigma)
    for leaf in jax.tree.leaves(scale):
        if isinstance(leaf, int | float | complex | str):
            _validate.non_negative(scale=leaf)
    return _noisy(sampler, key, value, _like_value(scale, value), sigma)


def _like_value(scale, value):
    """Returns one scale for each leaf of value, of a shape that broadcasts to it."""
    kinds = [np.shape(leaf) for leaf in jax.tree.leaves(scale)]
    rule = "a number, or a pytree prefix of value with shapes that broadcast to it"
    try:
        scales = jax.tree.broadcast(scale, value)
    except ValueError:
        raise ValueError(f"scale must be {rule}, got shapes {kinds}.") from None
    for s, x in zip(jax.tree.leaves(scales), jax.tree.leaves(value), strict=True):
        shape, trailing = np.shape(x), np.shape(s)[::-1]
        fits = all(a in (1, b) for a, b in zip(trailing, shape[::-1], strict=False))
        _validate.require(fits and np.ndim(s) <= np.ndim(x), "scale", kinds, rule)
    return scales


@partial(jax.jit, static_argnums=0)
def _noisy(sampler, key, value, scale, sigma):
    value = jax.tree.map(jnp.asarray, value)
    wide = as_float32(value)

    def draw(key, shape, dtype, *place):
        return sampler(key, jnp.asarray(sigma).astype(dtype), shape, dtype, *place)

    noise = _samplers.like(draw, key, wide)

    def add(x, scale, z, out):
        # As for Gaussian noise: a rounded scale must not mean less noise.
        scale = jnp.asarray(scale).astype(x.dtype) * ROUNDED_UP
        return (x + jnp.broadcast_to(scale, x.shape) * z).astype(out.dtype)

    return jax.tree.map(add, wide, scale, noise, value)
