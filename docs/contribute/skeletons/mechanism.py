"""Logistic noise: a skeleton of a mechanism."""

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms import _samplers


def logistic(key: Key, value: jax.Array, *, scale: Scalar) -> jax.Array:
    """Adds independent logistic noise to every entry: value + scale·(G - G').

    G and G' are standard Gumbel; their difference has standard deviation pi / sqrt(3).

    Args:
        key: a typed key, used once here.
        value: float array; the result is like it, in float32 at least.
        scale: of the logistic law, in units of value; non-negative, may be traced.

    Privacy:
        With l1 sensitivity D of value this is (D/scale)-differentially private, under
        the relation that D is stated for: the log-density of the noise has the
        derivative -tanh(x / (2 scale)) / scale, at most 1/scale. For real numbers: see
        `dpjax.mechanisms`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> noisy = logistic(jax.random.key(0), jnp.zeros(100_000), scale=1.0)
        >>> print(f"{noisy.std():.1f}")
        1.8

    Reference:
        The paper and its theorem.
    """
    _validate.typed_key(key)
    _validate.non_negative(scale=scale)
    dtype = jnp.result_type(value)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    _validate.require(is_float, "value", dtype, "of floating point")
    return _logistic(key, value, scale)


@jax.jit
def _logistic(key: Key, value: jax.Array, scale: Scalar) -> jax.Array:
    value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
    first, second = jax.random.split(key)
    noise = _samplers.gumbel(first, value.shape, value.dtype)
    noise -= _samplers.gumbel(second, value.shape, value.dtype)
    # The scale may have been rounded down: never add less than was calibrated.
    return value + (jnp.asarray(scale) * ROUNDED_UP).astype(value.dtype) * noise
