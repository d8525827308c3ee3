"""The private mean of heavy-tailed samples (papers 001 and 003)."""

from functools import partial

import jax

from dpjax import _validate
from dpjax._sharding import row_axes
from dpjax._tree import Static
from dpjax._types import Key, PyTree
from dpjax.batching import Full
from dpjax.estimators import Estimator, SmoothedTruncation
from dpjax.solvers._calibration import calibrated_noise, check_budget, traceable
from dpjax.solvers._solution import Solution
from dpjax.transforms import privatize


def dp_mean(
    samples: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    estimator: Estimator | None = None,
    moment_bound: float = 1.0,
) -> Solution:
    """Releases the robust mean of samples with Gaussian noise.

    With `Truncation` this is Algorithm 1 of paper 003, with `MedianOfMeans` around it
    Algorithm 3; with `SmoothedTruncation` it is equation (12) of paper 001, and with
    `TrimmedMean` its Algorithm 2, whose noise is in proportion to the smooth
    sensitivity.

    Args:
        samples: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        delta: privacy parameter in (0, 1).
        estimator: the robust mean. By default the smoothed truncation whose scale the
            theory chooses for `moment_bound`.
        moment_bound: a public bound on every coordinate's E x^2, in units of the
            samples squared; read only where estimator is left out. Privacy holds
            whether or not the bound does.

    Returns:
        A `Solution` whose params are the mean, leaves of shape (...). Its stats hold
        noise_multiplier, l2_sensitivity and stddev, and the default's scale and beta;
        with `TrimmedMean`, whose noise follows the data, rho in place of the two.

    Raises:
        ValueError: where an argument is out of its range.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: a Gaussian mechanism on
        a mean of known sensitivity, or that of `transforms.privatize`.

    Example:
        >>> import jax, numpy as np
        >>> samples = 3.0 + np.random.default_rng(0).standard_t(2.5, 10_000)
        >>> solution = dp_mean(samples, key=jax.random.key(0), epsilon=1.0,
        ...                         delta=1e-5, moment_bound=15.0)
        >>> print(f"{solution.params:.1f}")
        3.0

    Reference:
        Tao, Wu, Cheng, Wang (2022), Theorems 1 and 3; Wang, Xiao, Devadas, Xu (2020),
        equation (12) and Theorem 6.
    """
    check_budget(epsilon, delta)
    _validate.typed_key(key)
    samples = _validate.arrays(samples)
    num_samples = _validate.leading_size(samples, "samples")
    num_coordinates = sum(leaf.size for leaf in jax.tree.leaves(samples)) // num_samples
    stats = {}
    if estimator is None:
        estimator = SmoothedTruncation.for_moment(
            moment_bound,
            num_samples=num_samples,
            num_coordinates=num_coordinates,
            epsilon=epsilon,
            delta=delta,
        )
        stats = {"scale": estimator.scale, "beta": estimator.beta}
    _validate.bounded_estimator(estimator)
    multiplier, privacy = calibrated_noise(
        estimator,
        Full(),
        num_samples=num_samples,
        num_steps=1,
        epsilon=epsilon,
        delta=delta,
    )
    mean = _release(
        row_axes(samples, None) or None,
        samples,
        key,
        estimator,
        traceable(estimator, multiplier),
    )
    stats |= estimator.noise_parameters(multiplier, num_samples, num_coordinates)
    return Solution(mean, privacy, stats | {"noise_multiplier": multiplier})


@partial(jax.jit, static_argnums=0)
def _release(axis_name, samples, key, estimator, noise_multiplier):
    noise = privatize(
        estimator,
        noise_multiplier=Static.value_of(noise_multiplier),
        key=key,
        axis_name=axis_name,
    )
    return noise.update(samples, noise.init(samples))[0]
