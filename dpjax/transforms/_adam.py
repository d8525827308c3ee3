"""Adam whose second moment excludes the noise."""

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._tree import broadcast, like
from dpjax._types import Scalar


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
        del params, extra_args
        rule = (
            "known: put scale_by_dp_adam right after privatize in dpjax.chain, which "
            "passes it, but not with a strategy or TrimmedMean"
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
