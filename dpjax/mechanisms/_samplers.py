"""Random numbers with their tails: each from a sign and a tail probability.

`jax.random.normal` in float32 starts from 23 bits and never leaves [-5.42, 5.22], which
a large model's noise passes in every step. Here a quantile function is applied to a
tail probability of 31 random bits, and of 63 where it is small: a Gaussian reaches
beyond 9 standard deviations with the right mass. The sign is a bit of its own, so
noise is symmetric.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax._types import Key

_SMALL = 256  # of 2^31: a smaller tail probability needs more than one word of bits


def normal(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Draws standard normal variables, their tails beyond 9 standard deviations."""
    return _symmetric(lambda tail: -jax.scipy.special.ndtri(tail), key, shape, dtype)


def laplace(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Draws standard Laplace variables (scale 1), their tails beyond 40 scales."""
    return _symmetric(lambda tail: -jnp.log(2 * tail), key, shape, dtype)


def _symmetric(
    upper_quantile: Callable[[jax.Array], jax.Array],
    key: Key,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike,
) -> jax.Array:
    """Draws ±upper_quantile(p) with a fair sign and p uniform on (0, 1/2].

    p is (k + v) / 2^32 with k uniform on 31 bits. v, uniform on 32 more, is drawn where
    some k is below 256, once in 8 million draws, and always for float64. Else v is 1/2:
    p is then off by 2^-33, less than 2^-9 of itself. Whether more bits are drawn
    depends on the random bits alone.
    """
    word_key, more_key = jax.random.split(key)
    word = jax.random.bits(word_key, shape, "uint32")
    k = word >> 1

    def draw(v: jax.Array | float) -> jax.Array:
        size = upper_quantile((k.astype(dtype) + v) * 2.0**-32)
        return jnp.where((word & 1) == 1, -size, size)

    # The key enters the branch as plain words: under vmap the branch becomes a select,
    # which the check for key reuse would take for a second use.
    impl = jax.random.key_impl(more_key)

    def fine(words: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(words, impl=impl)
        more = jax.random.bits(key, shape, "uint32").astype(dtype)
        return draw(more * 2.0**-32 + 2.0**-33)

    words = jax.random.key_data(more_key)
    if dtype == jnp.float64:
        return fine(words)
    return jax.lax.cond(jnp.any(k < _SMALL), fine, lambda _: draw(0.5), words)
