"""The private trimmed mean of per-sample gradients (paper 001, Algorithm 2)."""

from typing import NamedTuple

import jax
import optax

from dpjax import _validate
from dpjax._sharding import AxisName, num_shares, row_axes
from dpjax._types import Key
from dpjax.accounting import calibrate_smooth_noise
from dpjax.estimators import TrimmedMean
from dpjax.mechanisms import laplace_log_normal


class PrivatizeTrimmedState(NamedTuple):
    """State of `privatize_trimmed`: the key of the next draws."""

    key: Key


def privatize_trimmed(
    estimator: TrimmedMean,
    *,
    rho: float,
    key: Key,
    relative_spread: float = 1.0,
    axis_name: AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation from per-sample gradients to their private trimmed mean.

    By coordinate, the trimmed mean plus Laplace log-normal noise in proportion to its
    smooth sensitivity. It goes first in a chain: what comes after it is post-processing
    and costs no privacy. It needs all n gradients at once, as `dpjax.per_sample_grad`
    makes them.

    Args:
        estimator: a `TrimmedMean`; its bounds are for every coordinate's mean.
        rho: zCDP cost of one update over all coordinates, positive: a number at hand.
            `dpjax.accounting.epsilon_to_rho(epsilon, delta) / T` for T updates.
        key: a typed key. It lives in the state; each update draws from a fresh one.
        relative_spread: a public guess of the range of a coordinate's gradients, in
            units of upper - lower. Smoothness and noise are split for it; privacy holds
            whatever it is. See `dpjax.accounting.calibrate_smooth_noise`.
        axis_name: the mesh axes over which gradients are dealt out, if they themselves
            do not tell; see `dpjax.robust_grad`.

    Returns:
        A transformation whose update takes gradients with leaves (n, ...) and returns
        leaves (...), in float32 for half-precision gradients. Its state is a pytree of
        arrays.

    Raises:
        ValueError: where an argument is out of its range, or update gets a mask or
            gradients without a sample axis.

    Privacy:
        One update is rho-zCDP under replace-one, for every input, NaN and infinities
        included: each of d coordinates is (rho/d)-zCDP by itself. T updates on the same
        data are (T rho)-zCDP: `rho_to_epsilon(T * rho, delta)` tells their epsilon.
        Paper 001 prints another sensitivity, which is not smooth: no privacy follows
        from it.

    Pitfalls:
        * The noise has heavy tails, and depends on the samples: few coordinates and
          many samples are its place. Elsewhere `privatize` with `SmoothedTruncation`
          adds less.
        * Batches are fixed by public index, such as all records or disjoint parts.
          A randomly drawn batch gives no amplification here, and a mask is refused.
        * The per-sample gradients, their trimmed mean and the smooth sensitivity are
          all private; only what `update` returns is released.
        * What is said of `privatize` about one optimizer for one run, `optax.masked`
          and `optax.MultiSteps` holds here too.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax.estimators import TrimmedMean
        >>> estimator = TrimmedMean(0.05, lower=-10.0, upper=10.0)
        >>> optimizer = optax.chain(
        ...     privatize_trimmed(estimator, rho=0.01, key=jax.random.key(0)),
        ...     optax.sgd(0.1))
        >>> params = jnp.zeros(3)
        >>> state = optimizer.init(params)
        >>> grads = jax.random.t(jax.random.key(1), 2.0, (10_000, 3)) + 5.0
        >>> updates, state = optimizer.update(grads, state, params)
        >>> print(updates.round(1))
        [-0.5 -0.5 -0.5]

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithms 2 and 3, with the smooth sensitivity
        in place of the printed bound, and the noise of Bun, Steinke (2019), Section 3.
    """
    _validate.require(
        isinstance(estimator, TrimmedMean),
        "estimator",
        estimator,
        "a TrimmedMean",
    )
    for name, value in {"rho": rho, "relative_spread": relative_spread}.items():
        _validate.require(
            _validate.is_concrete(value),
            name,
            value,
            "a number at hand, not a traced one",
        )
    _validate.positive(rho=rho, relative_spread=relative_spread)
    _validate.typed_key(key)

    def init(params):
        del params
        return PrivatizeTrimmedState(key)

    def update(updates, state, params=None, *, is_padding_example=None, **extra_args):
        del extra_args
        _validate.per_sample(updates, params)
        _validate.require(
            is_padding_example is None,
            "is_padding_example",
            is_padding_example,
            "None: every row has its place in the order",
        )
        num_samples = _validate.leading_size(updates, "updates")
        num_coordinates = sum(x.size for x in jax.tree.leaves(updates)) // num_samples
        num_samples *= num_shares(row_axes(updates, axis_name))
        noise = calibrate_smooth_noise(
            float(rho) / num_coordinates,
            num_samples=num_samples,
            trim_count=estimator.trim_count(num_samples),
            relative_spread=float(relative_spread),
        )
        mean, sensitivity = estimator.with_smooth_sensitivity(
            updates, noise.smoothness, axis_name=axis_name
        )
        next_key, noise_key = jax.random.split(state.key)
        released = laplace_log_normal(
            noise_key,
            mean,
            scale=jax.tree.map(lambda s: noise.multiplier * s, sensitivity),
            sigma=noise.sigma,
        )
        return released, PrivatizeTrimmedState(next_key)

    return optax.GradientTransformationExtraArgs(init, update)
