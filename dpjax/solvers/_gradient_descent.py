"""Robust gradient descent, private (papers 001 and 003) and not."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from dpjax import _validate
from dpjax._types import Calibration, Key, LossFn, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import Batching, Full
from dpjax.estimators import Estimator, TrimmedMean
from dpjax.gradients import per_sample_grad
from dpjax.solvers._calibration import calibrated_noise, check_budget, trimmed_rho
from dpjax.solvers._checkpoint import Checkpoint
from dpjax.solvers._descent import GradFn, Loop, Part, Watch, descend, run
from dpjax.solvers._solution import Solution
from dpjax.transforms import (
    add_gaussian_noise,
    average_iterates,
    average_params,
    privatize_trimmed,
    project,
)

ProjectionFn = Callable[[PyTree], PyTree]


class Method(NamedTuple):
    """The static part of a descent: a call with another one compiles anew."""

    loop: Loop
    loss_fn: LossFn
    schedule: optax.Schedule | None
    projection_fn: ProjectionFn | None
    averaging: bool
    rho: float | None = None  # of one step; for a private trimmed mean


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
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Minimises the mean loss by noisy steps along robust means of gradients.

    w <- Proj(w - eta·(robust mean of per-sample gradients + N(0, sigma^2 I))).

    With `SmoothedTruncation` and all records in every step this is Algorithm 4 of paper
    001; with `WithoutReplacement` or `Poisson` batches it is the stochastic version,
    accounted for with the privacy of sampling. With `MedianOfMeans` around `Truncation`
    it is Algorithm 2 of paper 003: convex with averaging=True, strongly convex with
    `Disjoint` batches. With `TrimmedMean` it is Algorithm 3 of paper 001, with noise in
    proportion to the smooth sensitivity; a step then holds all n gradients. With
    `Clipping` it is DP-GD.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive, any size.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, with a finite sensitivity; its scale is public. See
            `SmoothedTruncation.for_moment` and its kin for the theory's choice.
        learning_rate: step size eta, or an optax schedule of the step. Another schedule
            compiles anew; not so a `jax.tree_util.Partial` with other numbers.
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
        checkpoint: where the run is saved, so that it outlives its process.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size (the divisor), l2_sensitivity
        and stddev, and noise_multiplier = stddev / l2_sensitivity; with `TrimmedMean`,
        whose noise follows the data, rho of one step in place of those three.

    Raises:
        ValueError: where an argument is out of its range; before any computation.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: each step is a Gaussian mechanism on a mean of known sensitivity, and
        T of them compose exactly (`accounting.noise_multiplier`); a step with
        `TrimmedMean` is rho-zCDP (`transforms.privatize_trimmed`). The loss function,
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
    loop = _loop(
        num_samples,
        batching,
        num_steps,
        microbatch_size,
        watch,
        checkpoint,
        epsilon=epsilon,
        delta=delta,
    )
    _validate.bounded_estimator(estimator)
    _validate.require(
        not (estimator.groups_by_index and loop.batching.is_sampled),
        "batching",
        loop.batching,
        f"Full() or Disjoint() with {estimator}, to which records count by their index",
    )
    method = _method(loop, loss_fn, learning_rate, projection_fn, averaging)
    budget = {
        "num_samples": num_samples,
        "num_steps": loop.num_steps,
        "epsilon": epsilon,
        "delta": delta,
        "calibration": calibration,
    }
    if isinstance(estimator, TrimmedMean):
        estimator.trim_count(int(loop.batching.divisor(num_samples, loop.num_steps)))
        rho, privacy = trimmed_rho(loop.batching, **budget)
        method, multiplier, spent = method._replace(rho=rho), None, {"rho": rho}
    else:
        multiplier, privacy = calibrated_noise(estimator, loop.batching, **budget)
        spent = {"noise_multiplier": multiplier}
    params, stats = run(
        _descend,
        method,
        params=params,
        data=data,
        key=key,
        estimator=estimator,
        learning_rate=None if method.schedule else learning_rate,
        noise_multiplier=multiplier,
    )
    return Solution(params, privacy, stats | spent)


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
    checkpoint: Checkpoint | None = None,
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
        checkpoint: where the run is saved, so that it outlives its process.

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
    # Without a budget to say how rare overflow must be, a Poisson batch takes 1e-5.
    loop = _loop(
        num_samples,
        batching,
        num_steps,
        microbatch_size,
        watch,
        checkpoint,
        epsilon=1.0,
        delta=1e-5,
    )
    _validate.estimator(estimator)
    _validate.require(
        key is not None or not loop.batching.is_sampled,
        "key",
        key,
        f"given where batches are drawn, as by {loop.batching}",
    )
    method = _method(loop, loss_fn, learning_rate, projection_fn, averaging)
    key = jax.random.key(0) if key is None else key  # draws nothing
    _validate.typed_key(key)
    params, stats = run(
        _descend,
        method,
        params=params,
        data=data,
        key=key,
        estimator=estimator,
        learning_rate=None if method.schedule else learning_rate,
        noise_multiplier=None,
    )
    return Solution(params, PrivacyGuarantee.non_private(), stats)


def _schedule(learning_rate: optax.ScalarOrSchedule) -> optax.Schedule | None:
    """Returns what is static: a schedule; but of a Partial the numbers are traced."""
    is_static = callable(learning_rate) and not isinstance(learning_rate, Partial)
    return cast(optax.Schedule, learning_rate) if is_static else None


def _loop(
    num_samples: int,
    batching: Batching | None,
    num_steps: int | None,
    microbatch_size: int | None,
    watch: Watch | None,
    checkpoint: Checkpoint | None,
    *,
    epsilon: float,
    delta: float,
) -> Loop:
    """Checks and gathers the steps; takes their default and a Poisson capacity."""
    if num_steps is None:
        num_steps = max(1, math.ceil(10 * math.log(num_samples)))
    batching = Full() if batching is None else batching
    loop = Loop(batching, num_steps, microbatch_size, watch, checkpoint).checked()
    batching.divisor(num_samples, num_steps)
    batching = batching.prepared(num_samples, num_steps, epsilon=epsilon, delta=delta)
    return loop._replace(batching=batching)


def _method(
    loop: Loop,
    loss_fn: LossFn,
    learning_rate: optax.ScalarOrSchedule,
    projection_fn: ProjectionFn | None,
    averaging: bool,
) -> Method:
    """Checks and gathers what a descent is."""
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    _validate.require(
        projection_fn is None or callable(projection_fn),
        "projection_fn",
        projection_fn,
        "callable",
    )
    if not callable(learning_rate):
        _validate.positive(learning_rate=learning_rate)
    return Method(
        loop,
        loss_fn,
        _schedule(learning_rate),
        projection_fn,
        bool(averaging),
    )


@partial(jax.jit, static_argnums=0)
def _descend(
    method: Method,
    params: PyTree,
    data: PyTree,
    key: Key,
    estimator: Estimator,
    learning_rate: Any,
    noise_multiplier: Scalar | None,
    part: Part | None,
) -> tuple[tuple[PyTree, dict[str, Scalar]], PyTree]:
    """Runs w <- Proj(w - eta·(robust gradient + noise)) for T steps.

    There is no noise where noise_multiplier and rho are None; learning_rate is None
    where the method has the schedule.
    """
    loop = method.loop
    num_samples = jax.tree.leaves(data)[0].shape[0]
    divisor = loop.batching.divisor(num_samples, loop.num_steps)
    stats = {"num_steps": loop.num_steps, "batch_size": divisor}
    noise_key, batch_key = jax.random.split(key)
    grad_fn = loop.mean_grad(method.loss_fn, estimator, divisor)
    noise = optax.identity()
    if method.rho is not None:
        grad_fn = _every_grad(method, estimator)
        noise = privatize_trimmed(
            cast(TrimmedMean, estimator),
            rho=method.rho,
            key=noise_key,
            axis_name=loop.axis_name,
        )
    elif noise_multiplier is not None:
        num_params = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
        is_sampled = loop.batching.is_sampled
        measure = estimator.sampled_sensitivity if is_sampled else estimator.sensitivity
        sensitivity = measure(divisor, num_params).l2
        stddev = noise_multiplier * sensitivity
        stats |= {"l2_sensitivity": sensitivity, "stddev": stddev}
        noise = add_gaussian_noise(stddev=stddev, key=noise_key)
    projection_fn = method.projection_fn
    params, state, carry = descend(
        loop,
        grad_fn,
        optax.chain(
            noise,
            optax.sgd(method.schedule or learning_rate),
            project(projection_fn) if projection_fn else optax.identity(),
            average_iterates() if method.averaging else optax.identity(),
        ),
        params,
        data,
        batch_key,
        part,
    )
    return (average_params(state) if method.averaging else params, stats), carry


def _every_grad(method: Method, estimator: Estimator) -> GradFn:
    """Returns all gradients themselves: noise of a trimmed mean follows them."""
    per_sample = per_sample_grad(method.loss_fn)

    def grad_fn(params, batch, is_padding_example):
        _validate.require(
            is_padding_example is None,
            "batching",
            method.loop.batching,
            f"such that its batches fall evenly on all devices, with {estimator}",
        )
        return per_sample(params, batch)

    return grad_fn
