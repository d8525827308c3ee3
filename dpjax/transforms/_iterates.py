"""Projection of the iterates onto a set, and their averages."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._types import PyTree
from dpjax.transforms._privatize import require_params


def project(projection_fn: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
    """Returns a transformation that keeps the parameters in a set.

    The update becomes projection_fn(params + update) - params. Put it after the
    learning rate in a chain.

    Args:
        projection_fn: maps parameters to the nearest point of the set, such as
            `functools.partial(optax.projections.projection_l2_ball, scale=1.0)`.

    Returns:
        An optax transformation without state; its update needs params.

    Raises:
        ValueError: If projection_fn is not callable, or update gets no params.

    Privacy: post-processing, if the set does not depend on the data.

    Example:
        >>> import functools, jax.numpy as jnp, optax
        >>> ball = functools.partial(optax.projections.projection_l2_ball, scale=1.0)
        >>> optimizer = optax.chain(optax.sgd(1.0), project(ball))
        >>> params = jnp.zeros(2)
        >>> update, _ = optimizer.update(
        ...     jnp.array([-3.0, -4.0]), optimizer.init(params), params)
        >>> print(optax.apply_updates(params, update))
        [0.6 0.8]
    """
    is_fine = callable(projection_fn)
    _validate.require(is_fine, "projection_fn", projection_fn, "callable")

    def update(updates, state, params=None):
        moved = _moved(params, updates)
        return jax.tree.map(jnp.subtract, projection_fn(moved), params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class AverageIteratesState(NamedTuple):
    """Holds the number of iterates so far, and their mean."""

    num_iterates: jax.Array
    mean_iterate: PyTree


def average_iterates(
    *, power: float = 0.0, decay: float = 1.0
) -> optax.GradientTransformation:
    """Returns a transformation that keeps the mean of the iterates w_1, ..., w_T.

    Put it last in a chain: it does not change updates. `average_params` reads the mean
    from the optimizer's state.

    Args:
        power: exponent of the weights: the weight of w_t grows about as t^power. 0 is
            the plain mean.
        decay: the largest weight of the previous mean in an update. Below 1 this
            becomes the exponential moving average with that decay after 1 / (1 - decay)
            iterates, without a bias from the start.

    Returns:
        An optax transformation; its update needs params.

    Raises:
        ValueError: If power is negative or not finite, or decay not in [0, 1].

    Privacy: post-processing of the iterates, which have all been released.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> optimizer = optax.chain(optax.sgd(1.0), average_iterates())
        >>> params = jnp.zeros(())
        >>> state = optimizer.init(params)
        >>> for _ in range(3):
        ...     updates, state = optimizer.update(jnp.ones(()), state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> print(params, average_params(state))
        -3.0 -2.0

    Reference:
        Tao, Wu, Cheng, Wang (2022), Algorithm 2, line 14; Shamir, Zhang (2013), section
        4, for weights t^power; De et al. (2022), "Unlocking high-accuracy
        differentially private image classification through scale", for moving averages.
    """
    _validate.non_negative(power=power)
    _validate.within(0, 1, decay=decay)

    def init(params):
        def zeros(x):
            is_double = jnp.result_type(x) == jnp.float64
            return jnp.zeros_like(x, jnp.float64 if is_double else jnp.float32)

        start = jax.tree.map(zeros, params)
        return AverageIteratesState(jnp.zeros((), jnp.int32), start)

    def update(updates, state, params=None):
        count = state.num_iterates + 1

        def mean_of(old, new):
            weight = (power + 1) / (count.astype(old.dtype) + power)
            return old + (new.astype(old.dtype) - old) * jnp.maximum(weight, 1 - decay)

        mean = jax.tree.map(mean_of, state.mean_iterate, _moved(params, updates))
        return updates, AverageIteratesState(count, mean)

    return optax.GradientTransformation(init, update)


def average_params(state: Any) -> PyTree:
    """Returns the mean iterate from the state of a chain with `average_iterates`.

    Args:
        state: the optimizer's state, however deeply the transformation is nested.

    Returns:
        A pytree like params, in float32 for half precision (because bfloat16 cannot
        resolve a sum of more than 256 iterates); zeros before the first update.

    Raises:
        ValueError: If the state holds no or several `average_iterates`.

    Example: see `average_iterates`.
    """

    def is_average(node: Any) -> bool:
        return isinstance(node, AverageIteratesState)

    states = [*filter(is_average, jax.tree.leaves(state, is_leaf=is_average))]
    kinds = [type(x).__name__ for x in states]
    rule = "a state with exactly one average_iterates"
    _validate.require(len(states) == 1, "state", kinds, rule)
    return states[0].mean_iterate


def _moved(params: Any, updates: PyTree) -> PyTree:
    require_params(params)
    return optax.apply_updates(params, updates)
