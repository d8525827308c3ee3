"""Random numbers with their tails: each from a sign and a 63-bit tail probability.

`jax.random.normal` in float32 starts from 23 bits and never leaves [-5.42, 5.22], which
a large model's noise passes in every step. Here the quantile function is applied to a
tail probability of 63 random bits, small ones as exact as large ones: a Gaussian
reaches beyond 9 standard deviations with the right mass. The sign is a bit of its own,
so noise is symmetric.
"""

import jax
import jax.numpy as jnp

from dpjax._types import Key


def normal(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Draws standard normal variables, their tails beyond 9 standard deviations."""
    is_negative, tail = _signed_tail(key, shape, dtype)
    quantile = jax.scipy.special.ndtri(tail)
    return jnp.where(is_negative, quantile, -quantile)


def laplace(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Draws standard Laplace variables (scale 1), their tails beyond 40 scales."""
    is_negative, tail = _signed_tail(key, shape, dtype)
    size = -jnp.log(2 * tail)
    return jnp.where(is_negative, -size, size)


def _signed_tail(
    key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """Draws a fair sign, and a tail probability uniform on (0, 1/2].

    The probability is (k + v) / 2^32, with k uniform on 31 bits, v on 32 bits. The sum
    is rounded to the dtype: relative, hence harmless in the tail.
    """
    high, low = jax.random.split(key)
    word = jax.random.bits(high, shape, "uint32")
    v = jax.random.bits(low, shape, "uint32").astype(dtype) * 2.0**-32 + 2.0**-33
    tail = ((word >> 1).astype(dtype) + v) * 2.0**-32
    return (word & 1) == 1, tail
