"""The public weight vectors among which l1 regression chooses."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.constraints import Box, halton_net

_MOST_FEATURES_OF_A_BOX = 10  # beyond, halton_net's points lie on lines


def candidate_net(number: int, num_features: int, radius: float) -> jax.Array:
    """Returns public weight vectors to choose among, the first of them zero.

    Up to ten features: a Halton sequence in the box of ±radius. With more a box is all
    corners, so that each lies in the l1 ball of four coordinates instead, uniformly,
    drawn once and for all: a thin net, which reaches coarse weights at best.

    Example:
        >>> print(candidate_net(3, 2, 3.0))
        [[ 0.  0.]
         [-3. -3.]
         [ 0. -1.]]
    """
    zero = jnp.zeros((1, num_features))
    if num_features <= _MOST_FEATURES_OF_A_BOX:
        net = halton_net(Box(-radius, radius), num_features, num_candidates=number - 1)
        return jnp.concatenate([zero, net])
    place_key, sign_key, size_key = jax.random.split(jax.random.key(0), 3)
    shape = (number - 1, 4)
    places = jax.random.randint(place_key, shape, 0, num_features)
    signs = jax.random.rademacher(sign_key, shape, jnp.float32)
    gaps = jax.random.exponential(size_key, (number - 1, 5))
    sizes = radius * gaps[:, 1:] / jnp.sum(gaps, axis=1, keepdims=True)
    net = jnp.zeros((number - 1, num_features))
    net = net.at[jnp.arange(number - 1)[:, None], places].add(signs * sizes)
    return jnp.concatenate([zero, net])


def is_thin(arguments: Mapping[str, Any]) -> bool:
    """Tells whether a method chooses among too few candidates for their dimension."""
    net = arguments.get("candidates")
    return net is not None and net.shape[1] > _MOST_FEATURES_OF_A_BOX
