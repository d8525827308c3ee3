"""Additive noise on arrays and pytrees, with heavy tails for smooth sensitivities."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_varies_as, varying_axes
from dpjax._sums.fold import Unrounded
from dpjax._tree import as_float, narrowed_numbers
from dpjax._types import ArrayLike, Key, PyTree, Scalar
from dpjax.mechanisms import _samplers

LaplaceNorm = Literal["l1", "l2"]

_FEWEST_PADDED = 1024
# A normal draw is at most 9.4, so exp(8 * 9.4) stays finite in float32.
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-3, 8.0


def gaussian(key: Key, value: PyTree, *, stddev: Scalar) -> PyTree:
    """Adds independent Gaussian noise to every entry: value + stddev·N(0, 1).

    Args:
        key: a typed key, used once here.
        value: array or pytree of floats, or a mean of `Estimator.unrounded`, which is
            rounded after the noise is added. Half precision is converted to float32,
            and back after the noise is added.
        stddev: standard deviation in units of value; non-negative, may be traced.

    Returns:
        A pytree like value.

    Raises:
        ValueError: If key is not a single typed key, stddev is negative or not finite,
            or value has a leaf that is not floating point; inside `jax.shard_map`, if
            value varies over other mesh axes than key.

    Privacy:
        If value has the l2 sensitivity D, this is the Gaussian mechanism with epsilon =
        `dpjax.accounting.gaussian_epsilon(stddev, delta, sensitivity=D)`, under the
        relation of D; for real numbers, see `dpjax.mechanisms`. Sharding a value does
        not change its noise. Inside `jax.shard_map` the key must vary over the mesh
        axes over which the value varies; with check_vma=False this is not checked.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> noisy = gaussian(jax.random.key(0), jnp.zeros(100_000), stddev=2.0)
        >>> print(f"{noisy.std():.2f}")
        2.01

    Reference:
        Balle, Wang (2018), "Improving the Gaussian mechanism".
    """
    _validate.non_negative(stddev=stddev)
    return _noisy(_samplers.normal, key, check(key, value), stddev)


def padded(value: PyTree) -> PyTree:
    """Returns all leaves as vectors, with zeros appended to the short ones."""
    return jax.tree.map(
        lambda x: jnp.pad(x.ravel(), (0, max(0, _FEWEST_PADDED - x.size))), value
    )


@jax.jit
def gaussian_of_padded(
    key: Key, vector: ArrayLike | Unrounded, stddevs: ArrayLike
) -> jax.Array:
    """Adds the noise of `gaussian` to a `padded` vector, with a stddev for each entry.

    `padded` appends zeros up to 1024 entries, so that all short vectors share one
    compiled program. With Threefry, padding does not change the noise.
    """
    return gaussian(key, vector, stddev=jnp.asarray(stddevs))


def laplace(
    key: Key, value: PyTree, *, scale: Scalar, norm: LaplaceNorm = "l1"
) -> PyTree:
    """Adds Laplace noise of density exp(-||z|| / scale), up to a constant.

    With the l1 norm every entry gets independent noise: value + scale·Lap(1). With the
    l2 norm the noise has a uniform direction, and its length is a sum of d
    exponentials; if only the l2 sensitivity is known, this has half the variance.

    Args:
        key: a typed key, used once here.
        value: as for `gaussian`.
        scale: scale of the noise, in units of value; the standard deviation is
            sqrt(2)·scale, with the l2 norm sqrt(d + 1)·scale. Non-negative, may be
            traced.
        norm: "l1" or "l2". With "l2" value is one array, which inside `jax.shard_map`
            every device has whole: noise for each part would cost more together.

    Returns:
        A pytree like value.

    Raises:
        ValueError: As for `gaussian`; if norm is neither, or "l2" with a tree or with
            parts of an array.

    Privacy:
        If value has the sensitivity D in that norm, this is (D/scale)-differentially
        private, under the relation of D; for real numbers, see `dpjax.mechanisms`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> noisy = laplace(jax.random.key(0), jnp.zeros(100_000), scale=2.0)
        >>> print(f"{jnp.abs(noisy).mean():.2f}")
        2.01

    Reference:
        Dwork, McSherry, Nissim, Smith (2006), Proposition 1; for the l2 norm Hardt,
        Talwar (2010), "On the geometry of differential privacy".
    """
    _validate.non_negative(scale=scale)
    _validate.choice(LaplaceNorm, norm=norm)
    value = check(key, value)
    if norm == "l1":
        return _noisy(_samplers.laplace, key, value, scale)
    rule = "one array, not sharded, if norm is l2 (the norm of all entries)"
    leaves = jax.tree.leaves(value)
    is_whole = len(leaves) == 1 and not varying_axes(leaves[0])
    _validate.require(is_whole, "value", jax.tree.structure(value), rule)
    return _noisy(_samplers.spherical_laplace, key, value, scale)


def check(key: Key, value: PyTree) -> PyTree:
    """Checks value and key before noise is added; returns value as arrays of floats."""
    _validate.typed_key(key)
    value = narrowed_numbers(value, "value")
    check_key_varies_as(value, key)
    for leaf in jax.tree.leaves(value):
        dtype = jnp.result_type(leaf)
        is_float = jnp.issubdtype(dtype, jnp.floating)
        _validate.require(is_float, "value", dtype, "floating point in every leaf")
    return value


@partial(jax.jit, static_argnums=0)
def _noisy(sampler, key: Key, value: PyTree, scale: Scalar) -> PyTree:
    """Adds noise to each leaf of value: `scale`, rounded up, times sampler's draws."""
    # `sampler(key, shape, dtype, sharding)`, of `gaussian` or `laplace`, has scale 1.
    is_unrounded = isinstance(value, Unrounded)
    wide = jax.tree.map(as_float, value.high if is_unrounded else value)
    noise = _samplers.like(sampler, key, wide)

    # The scale is a float32 product of sensitivity and multiplier, which may have been
    # rounded down a few times, by 2^-24 each. Never add less noise than was calibrated.
    scale = jnp.asarray(scale) * ROUNDED_UP
    if is_unrounded:
        return value.plus(jax.tree.map(lambda z: scale.astype(z.dtype) * z, noise))

    def add(x: jax.Array, z: jax.Array, out: jax.Array) -> jax.Array:
        return (x + scale.astype(x.dtype) * z).astype(out.dtype)

    return jax.tree.map(add, wide, noise, value)


def laplace_log_normal(
    key: Key, value: PyTree, *, scale: PyTree, sigma: Scalar
) -> PyTree:
    """Adds Laplace noise of log-normal scale: value + scale·L·exp(sigma·Y).

    L is standard Laplace and Y standard normal, drawn independently for every entry.
    The noise's standard deviation is scale·sqrt(2)·exp(sigma^2).

    Args:
        key: a typed key, used once here.
        value: array or pytree of floats, as for `gaussian`.
        scale: non-negative, in units of value; a number, or a pytree prefix of value
            with arrays that broadcast to its leaves. It may depend on private data, so
            the values of arrays are not checked.
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

        under the relation of S; the costs of entries add up. For s solve this equation:
        `docs/privacy/proofs/mechanisms.md`, 2.6, proves it. For real numbers: see
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
    return _add_smooth(_laplace_log_normal, key, value, scale, sigma)


def arsinh_normal(key: Key, value: PyTree, *, scale: PyTree, sigma: Scalar) -> PyTree:
    """Adds noise whose arsinh is normal: value + scale·sinh(sigma·Y)/sigma.

    Y is standard normal, independent for every entry. The noise's standard deviation is
    scale·sqrt((exp(2 sigma^2) - 1) / 2) / sigma. Paper 001 uses sigma = 1.

    Arguments, result and errors are those of `laplace_log_normal`; here sigma sets the
    shape of the noise.

    Privacy:
        One entry with scale = S/s, where S is a t-smooth bound of its local
        sensitivity, is (1/2)epsilon^2-zCDP for

            epsilon = s (4 + 3 sigma^2) / (6 sigma)
                      + sqrt(t (t/sigma^2 + 1/sigma + 2)),

        and sigma >= 0.3, under the relation of S; the costs of entries add up. For s
        solve this equation: `docs/privacy/proofs/mechanisms.md`, 2.6, proves it. For
        small t, `laplace_log_normal` needs far less noise. For real numbers: see
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
    return _add_smooth(_arsinh_normal, key, value, scale, sigma)


def _laplace_log_normal(key, sigma, *kind):
    laplace_key, normal_key = jax.random.split(key)
    spread = jnp.exp(sigma * _samplers.normal(normal_key, *kind))
    return _samplers.laplace(laplace_key, *kind) * spread


def _arsinh_normal(key, sigma, *kind):
    return jnp.sinh(sigma * _samplers.normal(key, *kind)) / sigma


def _add_smooth(sampler, key, value, scale, sigma):
    value = check(key, value)
    _validate.within(_LEAST_SIGMA, _LARGEST_SIGMA, sigma=sigma)
    for leaf in jax.tree.leaves(scale):
        if isinstance(leaf, int | float | complex | str):
            _validate.non_negative(scale=leaf)
    return _noisy_smooth(sampler, key, value, _like_value(scale, value), sigma)


def _like_value(scale, value):
    """Returns `scale` as a pytree like `value`, so that each leaf has its own scale."""
    # `scale` is a number, or a pytree prefix of value with arrays that broadcast to its
    # leaves: any other raises `ValueError`.
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
def _noisy_smooth(sampler, key, value, scale, sigma):
    """Returns `value` plus noise: in each leaf, its scale times draws of `sampler`."""
    # `value` and `scale` are pytrees of one structure, and scales are rounded up.
    # `sampler(key, sigma, shape, dtype, sharding)` draws noise of scale 1, and `sigma`
    # is its shape parameter. `_add_smooth` has checked the arguments.
    wide = jax.tree.map(as_float, value)

    def draw(key, shape, dtype, *place):
        return sampler(key, jnp.asarray(sigma).astype(dtype), shape, dtype, *place)

    noise = _samplers.like(draw, key, wide)

    def add(x, scale, z, out):
        # Round up, as in `_noisy`: never add less noise than was calibrated.
        scale = jnp.asarray(scale).astype(x.dtype) * ROUNDED_UP
        return (x + jnp.broadcast_to(scale, x.shape) * z).astype(out.dtype)

    return jax.tree.map(add, wide, scale, noise, value)
