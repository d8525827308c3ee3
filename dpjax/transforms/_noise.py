"""Gaussian noise of a given standard deviation, as a transformation."""

import jax
import optax

from dpjax import _validate
from dpjax._types import Key, Scalar
from dpjax.mechanisms import gaussian
from dpjax.transforms._chain import KeyState


def add_gaussian_noise(*, stddev: Scalar, key: Key) -> optax.GradientTransformation:
    """Returns a transformation that adds N(0, stddev^2) to every entry of an update.

    Put it after `robust_grad` or `aggregate`, with noise for their sensitivity.

    Args:
        stddev: standard deviation in units of the update, non-negative.
        key: a typed key. It is part of the state; each update draws from a fresh one.

    Returns:
        An optax transformation; the state is a pytree of arrays.

    Raises:
        ValueError: If stddev is negative or key is no typed key.

    Privacy:
        One update of l2 sensitivity D is a Gaussian mechanism with noise multiplier
        stddev / D, under the relation of D.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> optimizer = optax.chain(
        ...     add_gaussian_noise(stddev=0.1, key=jax.random.key(0)), optax.sgd(1.0))
        >>> params = jnp.zeros(3)
        >>> update, _ = optimizer.update(jnp.ones(3), optimizer.init(params), params)
        >>> print(update.shape)
        (3,)

    Reference:
        Balle, Wang (2018), "Improving the Gaussian mechanism".
    """
    _validate.non_negative(stddev=stddev)
    _validate.typed_key(key)

    def init(params):
        del params
        return KeyState.of(key)

    def update(updates, state, params=None):
        del params
        next_key, noise_key = jax.random.split(state.key)
        noisy = gaussian(noise_key, updates, stddev=stddev)
        return noisy, KeyState(next_key)

    return optax.GradientTransformation(init, update)
