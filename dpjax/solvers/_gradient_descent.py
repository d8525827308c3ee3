"""Robust gradient descent, private (papers 001 and 003) and not."""

import math
from typing import Any, cast

import jax
import optax

from dpjax import _validate
from dpjax._types import Calibration, Key, LossFn, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import Batching, Full
from dpjax.estimators import Estimator
from dpjax.solvers._calibration import calibrated_noise, check_budget
from dpjax.solvers._descent import Method, ProjectionFn, Watch, descend
from dpjax.solvers._solution import Solution


def dp_gradient_descent(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    estimator: Estimator,
    learning_rate: optax.ScalarOrSchedule,
    num_steps: int | None = None,
    batching: Batching | None = None,
    projection_fn: ProjectionFn | None = None,
    averaging: bool = False,
    calibration: Calibration = "tight",
    microbatch_size: int | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Minimises the mean loss by noisy steps along robust means of gradients.

    w <- Proj(w - eta·(robust mean of per-sample gradients + N(0, sigma^2 I))).

    With `SmoothedTruncation` and all records in every step this is Algorithm 4 of paper
    001; with `WithoutReplacement` or `Poisson` batches it is the stochastic version,
    accounted for with the privacy of sampling. With `MedianOfMeans` around `Truncation`
    it is Algorithm 2 of paper 003: convex with averaging=True, strongly convex with
    `Disjoint` batches. With `Clipping` it is DP-GD.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive, any size.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, with a finite sensitivity; its scale is public. See
            `SmoothedTruncation.for_moment` and its kin for the theory's choice.
        learning_rate: step size eta, or an optax schedule of the step.
        num_steps: T; by default ceil(10 log n), the theory's T for strongly convex
            losses at a condition number of 10.
        batching: which records a step sees; all of them by default.
        projection_fn: maps parameters into the constraint set, such as
            `functools.partial(optax.projections.projection_l2_ball, scale=1.0)`.
        averaging: whether to release the mean of the iterates instead of the last.
        calibration: "tight" takes the exact noise. "paper" takes the noise printed for
            the estimator, and `Solution.privacy` says what it really gives.
        microbatch_size: samples processed at once; speed and memory only.
        watch: shows steps and iterates while the compiled scan runs.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size (the divisor), l2_sensitivity
        and stddev, and noise_multiplier = stddev / l2_sensitivity.

    Raises:
        ValueError: where an argument is out of its range; before any computation.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: each step is a Gaussian mechanism on a mean of known sensitivity, and
        T of them compose exactly (`accounting.noise_multiplier`). The loss function,
        params, step sizes, T and the projection must not depend on the data. Floating
        point noise has gaps: no claim is made against attacks on its last bits.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses
        >>> from dpjax.estimators import SmoothedTruncation
        >>> features = jax.random.normal(jax.random.key(0), (10_000, 2))
        >>> targets = features @ jnp.array([1.0, 2.0])
        >>> solution = dp_gradient_descent(
        ...     losses.squared, jnp.zeros(2), (features, targets),
        ...     key=jax.random.key(1), epsilon=1.0, delta=1e-6,
        ...     estimator=SmoothedTruncation(4.0), learning_rate=0.5, num_steps=20)
        >>> print(solution.params.round(1))
        [1. 2.]
        >>> print(solution.privacy)
        Replacing any one of the 10,000 records changes the probability of any outcome
        by at most a factor e^1 = 2.72, up to a failure probability of 1e-06.

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithm 4, Theorems 7 and 8; Tao, Wu, Cheng,
        Wang (2022), Algorithm 2, Theorems 5 to 7.
    """
    check_budget(epsilon, delta)
    _validate.calibration(calibration)
    _validate.typed_key(key)
    num_samples = _validate.leading_size(data, "data")
    num_steps = _num_steps(num_steps, num_samples)
    batching = _prepared(batching, num_samples, num_steps, epsilon=epsilon, delta=delta)
    _validate.estimator(estimator)
    _validate.require(
        estimator.limit is not None,
        "estimator",
        estimator,
        "one with a finite sensitivity",
    )
    _validate.require(
        not (estimator.groups_by_index and batching.is_sampled),
        "batching",
        batching,
        f"Full() or Disjoint() with {estimator}, which groups records by public index",
    )
    method = _method(
        loss_fn,
        batching,
        num_steps,
        learning_rate,
        projection_fn,
        averaging,
        microbatch_size,
        watch,
    )
    multiplier, privacy = calibrated_noise(
        estimator,
        batching,
        num_samples=num_samples,
        num_steps=num_steps,
        epsilon=epsilon,
        delta=delta,
        calibration=calibration,
    )
    params, stats = descend(
        method, params, data, key, estimator, _step_size(learning_rate), multiplier
    )
    return Solution(params, privacy, stats | {"noise_multiplier": multiplier})


def robust_gradient_descent(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    estimator: Estimator,
    learning_rate: optax.ScalarOrSchedule,
    num_steps: int | None = None,
    batching: Batching | None = None,
    key: Key | None = None,
    projection_fn: ProjectionFn | None = None,
    averaging: bool = False,
    microbatch_size: int | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Minimises the mean loss along robust means of gradients, WITHOUT privacy.

    The baseline RGD of paper 001, full or stochastic: `dp_gradient_descent` without its
    noise. With `Mean` it is plain gradient descent.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start.
        data: pytree, leaves of shape (n, ...).
        estimator: the robust mean.
        learning_rate: step size, or an optax schedule of the step.
        num_steps: T; by default ceil(10 log n).
        batching: which records a step sees; all of them by default.
        key: a typed key; needed where batching draws at random.
        projection_fn: maps parameters into the constraint set.
        averaging: whether to return the mean of the iterates instead of the last.
        microbatch_size: samples processed at once; speed and memory only.
        watch: shows steps and iterates while the compiled scan runs.

    Returns:
        A `Solution` whose guarantee says epsilon = inf.

    Raises:
        ValueError: where an argument is out of its range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses
        >>> from dpjax.estimators import SmoothedTruncation
        >>> features = jax.random.normal(jax.random.key(0), (1000, 2))
        >>> targets = features @ jnp.array([1.0, 2.0])
        >>> solution = robust_gradient_descent(
        ...     losses.squared, jnp.zeros(2), (features, targets),
        ...     estimator=SmoothedTruncation(20.0), learning_rate=0.5, num_steps=20)
        >>> print(solution.params.round(2), solution.privacy.epsilon)
        [1. 2.] inf

    Reference:
        Holland (2019), as cited by Wang, Xiao, Devadas, Xu (2020), Section 6.
    """
    num_samples = _validate.leading_size(data, "data")
    num_steps = _num_steps(num_steps, num_samples)
    # Without a budget to say how rare overflow must be, a Poisson batch takes 1e-5.
    batching = _prepared(batching, num_samples, num_steps, epsilon=1.0, delta=1e-5)
    _validate.estimator(estimator)
    _validate.require(
        key is not None or not batching.is_sampled,
        "key",
        key,
        f"given where batches are drawn, as by {batching}",
    )
    method = _method(
        loss_fn,
        batching,
        num_steps,
        learning_rate,
        projection_fn,
        averaging,
        microbatch_size,
        watch,
    )
    key = jax.random.key(0) if key is None else key  # draws nothing
    _validate.typed_key(key)
    params, stats = descend(
        method, params, data, key, estimator, _step_size(learning_rate), None
    )
    return Solution(params, PrivacyGuarantee.non_private(), stats)


def _step_size(learning_rate: optax.ScalarOrSchedule) -> Any:
    """The step size where it is a number, which is traced; None for a schedule."""
    return None if callable(learning_rate) else learning_rate


def _num_steps(num_steps: int | None, num_samples: int) -> int:
    if num_steps is None:
        return max(1, math.ceil(10 * math.log(num_samples)))
    _validate.count(num_steps=num_steps)
    return num_steps


def _prepared(batching, num_samples, num_steps, *, epsilon, delta) -> Batching:
    batching = Full() if batching is None else batching
    _validate.require(
        isinstance(batching, Batching),
        "batching",
        batching,
        "Full(), Disjoint(), Poisson(...) or WithoutReplacement(...)",
    )
    batching.divisor(num_samples, num_steps)
    return batching.prepared(num_samples, num_steps, epsilon=epsilon, delta=delta)


def _method(
    loss_fn,
    batching,
    num_steps,
    learning_rate,
    projection_fn,
    averaging,
    microbatch_size,
    watch,
) -> Method:
    """Checks and gathers what a descent is."""
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    _validate.require(
        projection_fn is None or callable(projection_fn),
        "projection_fn",
        projection_fn,
        "callable",
    )
    if microbatch_size is not None:
        _validate.count(microbatch_size=microbatch_size)
    if watch is not None:
        _validate.require(
            isinstance(watch, Watch) and callable(watch.callback),
            "watch",
            watch,
            "a Watch(callback, every)",
        )
        _validate.count(every=watch.every)
    if not callable(learning_rate):
        _validate.positive(learning_rate=learning_rate)
    return Method(
        loss_fn,
        batching,
        num_steps,
        cast(optax.Schedule, learning_rate) if callable(learning_rate) else None,
        projection_fn,
        bool(averaging),
        microbatch_size,
        watch,
    )
