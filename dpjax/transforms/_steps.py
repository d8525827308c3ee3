"""Steps after a private mean: Adam, projection onto a set, averages of iterates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._tree import broadcast, like
from dpjax._types import PyTree, Scalar
from dpjax.transforms._privatize import require_params, wide_zeros


def scale_by_dp_adam(
    *, b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-8, floor: Scalar = 0.3
) -> optax.GradientTransformationExtraArgs:
    """Returns Adam that subtracts the variance of the noise from its second moment.

    The step is m / (sqrt(max(v, floor·sigma^2)) + eps). Here m is the moving average of
    the private gradients g, and v is the moving average of g^2 - sigma^2, both with
    bias correction; sigma is the standard deviation of the noise in g. In
    `optax.scale_by_adam` v includes the noise, which dominates every coordinate, so
    that its steps are nearly gradient descent with momentum. Without noise both agree.

    Put it second in `dpjax.chain`, right after `privatize`, which passes sigma in every
    step, also with adaptive thresholds. Or pass the keyword noise_stddev to update: a
    number, or a pytree prefix of the gradients with numbers or arrays as leaves.

    Args:
        b1: decay of the average of gradients, in [0, 1).
        b2: decay of the average of squares, in [0, 1).
        eps: in units of the gradients; it matters only without noise.
        floor: smallest second moment, in units of sigma^2. It applies to gradients that
            do not exceed the noise.

    Returns:
        An optax transformation, to be followed by `optax.scale_by_learning_rate`. Its
        state is an `optax.ScaleByAdamState`; nu is v and may be negative.

    Raises:
        ValueError: If an argument is out of its range; from update, if sigma is
            unknown. That is so after another transformation, such as momentum; with a
            strategy, whose noise depends on earlier noise and would bias v; and with
            `TrimmedMean`, because its noise depends on the samples.

    Privacy: post-processing of the private gradients and of sigma, which depends only
        on public numbers and released thresholds.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import dpjax
        >>> from dpjax.estimators import Clipping
        >>> from dpjax.transforms import privatize, scale_by_dp_adam
        >>> optimizer = dpjax.chain(
        ...     privatize(Clipping(1.0), noise_multiplier=1.0, key=jax.random.key(0)),
        ...     scale_by_dp_adam(),
        ...     optax.scale_by_learning_rate(1e-3))
        >>> state = optimizer.init(jnp.zeros(3))
        >>> print(optimizer.update(jnp.ones((8, 3)), state)[0].shape)
        (3,)

    Reference:
        Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, Algorithm 1, with its constant
        floor in units of the noise.
    """
    for name, value in (("b1", b1), ("b2", b2)):
        is_fine = not _validate.is_concrete(value) or 0 <= float(value) < 1
        _validate.require(is_fine, name, value, "in [0, 1)")
    _validate.non_negative(eps=eps)
    _validate.positive(floor=floor)

    def init(params):
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(updates, state, params=None, *, noise_stddev=None, **extra_args):
        """Returns Adam's step, with noise variance taken off squared gradients."""
        rule = (
            "given: put scale_by_dp_adam right after privatize in dpjax.chain, which "
            "passes it, unless privatize has a strategy or TrimmedMean"
        )
        _validate.require(noise_stddev is not None, "noise_stddev", noise_stddev, rule)
        stddev = broadcast(noise_stddev, updates, "noise_stddev")
        count = jnp.asarray(optax.safe_increment(state.count))

        def average(old, new, decay):
            decay = like(decay, old)
            return decay * old + (1 - decay) * new.astype(old.dtype)

        def without_noise(g, s):
            s = like(s, g)
            return (g - s) * (g + s)

        def direction(m, v, s):
            t = like(count, m)
            m, v = (x / (1 - like(b, x) ** t) for x, b in ((m, b1), (v, b2)))
            v = jnp.maximum(v, like(floor, v) * like(s, v) ** 2)
            return m / (jnp.sqrt(v) + like(eps, v))

        squares = jax.tree.map(without_noise, updates, stddev)
        mu = jax.tree.map(lambda m, g: average(m, g, b1), state.mu, updates)
        nu = jax.tree.map(lambda v, g: average(v, g, b2), state.nu, squares)
        steps = jax.tree.map(direction, mu, nu, stddev)
        return steps, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def project(projection_fn: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
    """Returns a transformation that keeps the parameters in a set.

    The update is projection_fn(params + update) - params. Put it after the step size.

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
        return AverageIteratesState(jnp.zeros((), jnp.int32), wide_zeros(params))

    def update(updates, state, params=None):
        """Returns updates as they are, and the state with params + updates averaged."""
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
    rule = "the state of an optimizer with exactly one average_iterates"
    _validate.require(len(states) == 1, "state", kinds, rule)
    return states[0].mean_iterate


def _moved(params: Any, updates: PyTree) -> PyTree:
    require_params(params)
    return optax.apply_updates(params, updates)
