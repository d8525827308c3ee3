"""Random numbers with their tails: each from a sign and a tail probability.

`jax.random.normal` in float32 starts from 23 bits and never leaves [-5.42, 5.22], which
a large model's noise passes in every step. Here a quantile function is applied to a
tail probability of 31 random bits, and of 63 where it is small: a Gaussian reaches
beyond 9 standard deviations with the right mass. The sign is a bit of its own, so
noise is symmetric; a law without symmetry takes it for the choice of its half.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from dpjax._types import Key

_SMALL = 256  # of 2^31: a smaller tail probability needs more than one word of bits


def normal(
    key: Key,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
    out_sharding: jax.sharding.Sharding | None = None,
) -> jax.Array:
    """Draws standard normal variables, their tails beyond 9 standard deviations."""

    def quantile(tail: jax.Array) -> jax.Array:
        return -jax.scipy.special.ndtri(tail)

    return _symmetric(quantile, key, shape, dtype, out_sharding)


def laplace(
    key: Key,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
    out_sharding: jax.sharding.Sharding | None = None,
) -> jax.Array:
    """Draws standard Laplace variables (scale 1), their tails beyond 40 scales."""

    def quantile(tail: jax.Array) -> jax.Array:
        return -jnp.log(2 * tail)

    return _symmetric(quantile, key, shape, dtype, out_sharding)


def exponential(
    key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
) -> jax.Array:
    """Draws standard exponential variables, from 2^-65 to 45, both tails in full."""
    return _from_tail(_exponential_quantile, key, shape, dtype)


def gumbel(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Draws standard Gumbel variables, from -3.8 to 45, both tails in full."""

    def quantile(tail: jax.Array, is_lower: jax.Array) -> jax.Array:
        # -log of a standard exponential: its lower tail is the Gumbel's upper one.
        return -jnp.log(_exponential_quantile(tail, is_lower))

    return _from_tail(quantile, key, shape, dtype)


def _exponential_quantile(tail: jax.Array, is_lower: jax.Array) -> jax.Array:
    return jnp.where(is_lower, -jnp.log1p(-tail), -jnp.log(tail))


def _symmetric(
    upper_quantile: Callable[[jax.Array], jax.Array],
    key: Key,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
    out_sharding: jax.sharding.Sharding | None,
) -> jax.Array:
    """Draws ±upper_quantile(p) with a fair sign and p uniform on (0, 1/2]."""

    def quantile(tail: jax.Array, is_lower: jax.Array) -> jax.Array:
        size = upper_quantile(tail)
        return jnp.where(is_lower, -size, size)

    return _from_tail(quantile, key, shape, dtype, out_sharding)


def _from_tail(
    quantile: Callable[[jax.Array, jax.Array], jax.Array],
    key: Key,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
    out_sharding: jax.sharding.Sharding | None = None,
) -> jax.Array:
    """Draws quantile(p, is_lower), a fair bit choosing the half of the law.

    p, uniform on (0, 1/2], is the mass beyond the value: below it in the lower half,
    above it in the upper half.

    p is (k + v) / 2^32 with k uniform on 31 bits. v, uniform on 32 more, is drawn where
    some k is below 256, once in 8 million draws, and always for float64. Else v is 1/2:
    p is then off by 2^-33, less than 2^-9 of itself. Whether more bits are drawn
    depends on the random bits alone.

    Each bit is a function of the key and its place alone: a sharded draw is the same as
    one on a single device, and every device makes what it holds.
    """
    word_key, more_key = jax.random.split(key)
    bits = partial(jax.random.bits, shape=shape, dtype="uint32")
    if isinstance(out_sharding, NamedSharding) and any(out_sharding.spec):
        bits = partial(bits, out_sharding=out_sharding)
    word = bits(word_key)
    k = word >> 1

    # The key enters the branch as plain words: under vmap the branch becomes a select,
    # which the check for key reuse would take for a second use.
    impl = jax.random.key_impl(more_key)

    def fine(words: jax.Array) -> jax.Array:
        more = bits(jax.random.wrap_key_data(words, impl=impl))
        return more.astype(dtype) * 2.0**-32 + 2.0**-33

    def coarse(words: jax.Array) -> jax.Array:
        del words
        return jnp.full_like(word, 0.5, dtype=dtype)

    words = jax.random.key_data(more_key)
    if dtype == jnp.float64:
        v = fine(words)
    else:
        v = jax.lax.cond(jnp.any(k < _SMALL), fine, coarse, words)
    return quantile((k.astype(dtype) + v) * 2.0**-32, (word & 1) == 1)
