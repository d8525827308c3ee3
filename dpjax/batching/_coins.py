"""Independent coins for records, and the indices of the heads."""

import jax
import jax.numpy as jnp

from dpjax._types import Key


def coins(key: Key, num_samples: int, probability: float) -> jax.Array:
    """Draws for each record true with a probability, rounded down to 32 bits."""
    threshold = int(probability * 2**32)  # of 32 random bits
    if threshold == 2**32:
        return jnp.ones(num_samples, bool)
    return jax.random.bits(key, (num_samples,), "uint32") < jnp.uint32(threshold)


def true_places(mask: jax.Array, size: int) -> jax.Array:
    """Returns the indices of the first true entries; beyond the last, the length."""
    return jnp.searchsorted(jnp.cumsum(mask), jnp.arange(1, size + 1)).astype(int)
