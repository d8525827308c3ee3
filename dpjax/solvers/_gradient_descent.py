"""Robust gradient descent, private (papers 001 and 003) and not."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from dpjax import _validate
from dpjax._tree import Static, register
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import Batching, Full
from dpjax.estimators import Estimator
from dpjax.solvers._calibration import (
    calibrated_noise,
    check_budget,
    traceable,
    unit_of,
)
from dpjax.solvers._loop import Batches, Execution, OptaxStep, check_steps, iterate
from dpjax.solvers._solution import Solution
from dpjax.transforms import average_iterates, average_params, privatize, project

ProjectionFn = Callable[[PyTree], PyTree]


@register("estimator", "learning_rate", "noise_multiplier", "key")
@dataclass(frozen=True, kw_only=True)
class GradientStep(OptaxStep):
    """w <- Proj(w - eta·(robust mean of gradients + noise)): 001 Alg. 4, 003 Alg. 2.

    noise_multiplier None is no noise. A schedule is static, unless it is a `Partial`,
    whose arguments are traced.
    """

    estimator: Estimator
    learning_rate: Scalar | Partial | None
    noise_multiplier: Scalar | Static | None
    schedule: optax.Schedule | None
    projection_fn: ProjectionFn | None
    averaging: bool

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """See `OptaxStep.optimizer`."""
        del params
        rate = cast(optax.ScalarOrSchedule, self.schedule or self.learning_rate)
        if self.noise_multiplier is None:
            mean = self.mean(self.estimator)
        else:
            mean = privatize(
                self.estimator,
                noise_multiplier=Static.value_of(self.noise_multiplier),
                key=cast(Key, self.key),
                normalize_by=self.batches.divisor,
                sampled=self.batches.is_sampled,
                axis_name=self.batches.axis_name,
            )
        keep = optax.identity()
        return optax.chain(
            mean,
            optax.sgd(rate),
            project(self.projection_fn) if self.projection_fn else keep,
            average_iterates() if self.averaging else keep,
        )


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
    execution: Execution = Execution(),
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
        data: pytree, leaves of shape (n, ...); n is public. Of what
            `dpjax.gradients.by_user` returns, n is the number of users, and the
            guarantee is for them.
        key: a typed key.
        epsilon: privacy of the whole run, positive, any size.
        delta: privacy of the whole run, in (0, 1). The noise is the least that gives
            both; for the noise that a paper prints see `solvers.printed_epsilon`.
        estimator: the robust mean, with a finite sensitivity; its scale is public. See
            `SmoothedTruncation.for_moment` and its kin for the theory's choice.
        learning_rate: step size eta, or an optax schedule of the step. A schedule is
            static, but the arguments of a `jax.tree_util.Partial` are traced.
        num_steps: T; by default ceil(10 log n), the theory's T for strongly convex
            losses at a condition number of 10.
        batching: the batch of each step; all records by default.
        projection_fn: maps parameters into the constraint set, such as
            `functools.partial(optax.projections.projection_l2_ball, scale=1.0)`.
        averaging: whether to release the mean of the iterates instead of the last.
        execution: how it runs: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size (the divisor),
        noise_multiplier, and l2_sensitivity and stddev, their product; with
        `TrimmedMean`, whose noise follows the data, rho of one step instead of the two.

    Raises:
        ValueError: where an argument is out of its range; before any computation.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: each step is a Gaussian mechanism on a mean of known sensitivity, and
        T of them compose exactly (`accounting.noise_multiplier`); a step with
        `TrimmedMean` is rho-zCDP (`transforms.privatize`). The loss function,
        params, step sizes, T and the projection must not depend on the data.

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
        Replacing any one of the 10,000 records changes the probability of any event
        to at most e^1 = 2.72 times what it was, plus 1e-06.

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithm 4, Theorems 7 and 8; Tao, Wu, Cheng,
        Wang (2022), Algorithm 2, Theorems 5 to 7.
    """
    check_budget(epsilon, delta)
    _validate.typed_key(key)
    data = _validate.arrays(data)
    num_samples = _validate.leading_size(data, "data")
    num_steps, batching = _steps(num_samples, num_steps, batching)
    multiplier, privacy = calibrated_noise(
        estimator,
        batching,
        num_samples=num_samples,
        num_steps=num_steps,
        epsilon=epsilon,
        delta=delta,
        unit=unit_of(data),
    )
    params, stats = _descend(
        loss_fn,
        params,
        data,
        key=key,
        estimator=estimator,
        learning_rate=learning_rate,
        noise_multiplier=multiplier,
        num_steps=num_steps,
        batching=batching,
        projection_fn=projection_fn,
        averaging=averaging,
        execution=execution,
        epsilon=epsilon,
        delta=delta,
    )
    num_params = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    stats |= estimator.noise_parameters(
        multiplier, stats["batch_size"], num_params, is_sampled=batching.is_sampled
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
    execution: Execution = Execution(),
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
        batching: the batch of each step; all records by default.
        key: a typed key; needed where batching draws at random.
        projection_fn: maps parameters into the constraint set.
        averaging: whether to return the mean of the iterates instead of the last.
        execution: how it runs: microbatches, callback, checkpoint.

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
    data = _validate.arrays(data)
    num_samples = _validate.leading_size(data, "data")
    num_steps, batching = _steps(num_samples, num_steps, batching)
    _validate.estimator(estimator)
    _validate.require(
        key is not None or not batching.is_sampled,
        "key",
        key,
        f"given where batches are drawn, as by {batching}",
    )
    key = jax.random.key(0) if key is None else key  # draws nothing
    _validate.typed_key(key)
    params, stats = _descend(
        loss_fn,
        params,
        data,
        key=key,
        estimator=estimator,
        learning_rate=learning_rate,
        noise_multiplier=None,
        num_steps=num_steps,
        batching=batching,
        projection_fn=projection_fn,
        averaging=averaging,
        execution=execution,
        # No budget tells how rare the overflow of a Poisson batch must be: as of this.
        epsilon=1.0,
        delta=1e-5,
    )
    return Solution(params, PrivacyGuarantee.non_private(), stats)


def _steps(
    num_samples: int, num_steps: int | None, batching: Batching | None
) -> tuple[int, Batching]:
    """Checks steps and batching, and returns them or their defaults."""
    if num_steps is None:
        num_steps = max(1, math.ceil(10 * math.log(num_samples)))
    batching = Full() if batching is None else batching
    check_steps(num_samples, num_steps, batching)
    return num_steps, batching


def _descend(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    estimator: Estimator,
    learning_rate: optax.ScalarOrSchedule,
    noise_multiplier: float | None,
    num_steps: int,
    batching: Batching,
    projection_fn: ProjectionFn | None,
    averaging: bool,
    execution: Execution,
    epsilon: float,
    delta: float,
) -> tuple[PyTree, dict[str, Scalar]]:
    """Checks what a descent is, and runs it: the released iterate, what was taken."""
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    _validate.require(
        projection_fn is None or callable(projection_fn),
        "projection_fn",
        projection_fn,
        "callable",
    )
    if not callable(learning_rate):
        _validate.positive(learning_rate=learning_rate)
    is_static = callable(learning_rate) and not isinstance(learning_rate, Partial)
    step = GradientStep(
        loss_fn=loss_fn,
        batches=Batches.of(data, num_steps, batching, execution),
        estimator=estimator,
        learning_rate=None if is_static else cast(Scalar | Partial, learning_rate),
        noise_multiplier=traceable(estimator, noise_multiplier),
        schedule=cast(optax.Schedule, learning_rate) if is_static else None,
        projection_fn=projection_fn,
        averaging=bool(averaging),
    )
    params, state = iterate(
        step,
        params,
        data,
        key=key,
        num_steps=num_steps,
        batching=batching,
        execution=execution,
        epsilon=epsilon,
        delta=delta,
    )
    stats = {"num_steps": num_steps, "batch_size": step.batches.divisor}
    return average_params(state) if averaging else params, stats
