"""Noise that is correlated over steps, as the state of a transformation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._keys import secret_repr
from dpjax._sharding import check_key_varies_as
from dpjax._sums.exact import Unrounded
from dpjax._tree import like
from dpjax._types import Key, PyTree, Scalar
from dpjax.mechanisms import Strategy, gaussian
from dpjax.transforms._chain import KeyState


class CorrelatedState(NamedTuple):
    """State of correlated noise.

    Attributes:
        key: key of the next draws.
        step: number of steps so far.
        buffers: buffers of the strategy, trees like the parameters in units of the
            noise. They are as secret as the key.
    """

    key: Key
    step: jax.Array
    buffers: tuple[PyTree, ...]
    __repr__ = secret_repr


def correlated_state(strategy: Strategy, key: Key, params: PyTree) -> CorrelatedState:
    """Returns the state before the first step, for updates like params."""
    buffers = tuple(_zeros(params) for _ in range(strategy.num_buffers))
    return CorrelatedState(KeyState.of(key).key, jnp.zeros((), jnp.int32), buffers)


def add_correlated_noise(
    strategy: Strategy, state: CorrelatedState, value: Unrounded, *, stddev: Scalar
) -> tuple[PyTree, CorrelatedState]:
    """Returns the value plus a row of stddev C^-1 z, and the next state.

    `stddev` is that of z in units of value, and must be the same in all steps.
    """
    next_key, noise_key = jax.random.split(state.key)
    check_key_varies_as(value, noise_key)
    # `gaussian` rounds its scale up, and has full tails.
    independent = gaussian(noise_key, _zeros(value.high), stddev=1.0)
    noise, buffers = strategy.next_noise(independent, state.buffers, state.step)
    noise = jax.tree.map(lambda z: like(stddev, z) * z, noise)
    return value.plus(noise), CorrelatedState(next_key, state.step + 1, buffers)


def _zeros(tree: PyTree) -> PyTree:
    """Returns zeros like a tree, sharded alike, in float32 or float64."""

    def zeros(x: jax.Array) -> jax.Array:
        dtype = jnp.float64 if jnp.result_type(x) == jnp.float64 else jnp.float32
        return jnp.zeros_like(jnp.asarray(x), dtype=dtype)

    return jax.tree.map(zeros, tree)
