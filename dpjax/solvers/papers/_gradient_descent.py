"""Robust gradient descent, private (papers 001 and 003) and not."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import optax
from jax.tree_util import Partial

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import Static, arrays, num_coordinates
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import Batching, Full
from dpjax.estimators import Estimator
from dpjax.solvers.training._calibration import (
    calibrated_noise,
    check_budget,
    traceable,
    unit_of,
)
from dpjax.solvers.training._loop import Batches, Execution, PrivateStep, iterate
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import average_iterates, average_params, project

ProjectionFn = Callable[[PyTree], PyTree]


class Descent(NamedTuple):
    """Makes projected gradient descent for a learning rate: w <- Proj(w - eta·mean)."""

    projection_fn: ProjectionFn | None
    averaging: bool

    def __call__(
        self, learning_rate: optax.ScalarOrSchedule
    ) -> optax.GradientTransformation:
        keep = optax.identity()
        return optax.chain(
            optax.sgd(learning_rate),
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
    """Minimizes the mean loss by noisy steps along robust means of gradients.

    A step is w <- Proj(w - eta·(g + N(0, sigma^2 I))), where g is the robust mean of
    per-example gradients. `Clipping` gives DP-GD; `SmoothedTruncation` Algorithm 4 of
    paper 001; `MedianOfMeans` around `Truncation` Algorithm 2 of paper 003
    (averaging=True for convex losses, `Disjoint` batches for strongly convex losses);
    `TrimmedMean` Algorithm 3 of paper 001, with noise proportional to the smooth
    sensitivity, and n gradients in memory.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: leaves of shape (n, ...), or users of `gradients.by_user`; n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, with a finite sensitivity; its scale is public.
        learning_rate: eta, or an optax schedule: static, unless in a `Partial` of JAX.
        num_steps: T; by default ceil(10 log n), for strongly convex losses.
        batching: the batch of each step; all records by default.
        projection_fn: maps parameters into the constraint set, as optax.projections do.
        averaging: whether to release the mean of the iterates instead of the last one.
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size, noise_multiplier,
        l2_sensitivity and stddev. With `TrimmedMean`, rho of one step (zCDP) replaces
        the last two.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: each step is a Gaussian mechanism on a mean of known sensitivity, and
        T of them compose exactly (`accounting.noise_multiplier`); a step with
        `TrimmedMean` is rho-zCDP. No argument but the data may depend on them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import estimators, losses
        >>> x = jax.random.normal(jax.random.key(0), (10_000, 2))
        >>> solution = dp_gradient_descent(
        ...     losses.squared, jnp.zeros(2), (x, x @ jnp.array([1.0, 2.0])),
        ...     key=jax.random.key(1), epsilon=1.0, delta=1e-6, learning_rate=0.5,
        ...     estimator=estimators.SmoothedTruncation(4.0), num_steps=20)
        >>> print(solution.params.round(1))
        [1. 2.]

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithm 4, Theorems 7 and 8; Tao, Wu, Cheng,
        Wang (2022), Algorithm 2, Theorems 5 to 7.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, data)
    check_descent(loss_fn, learning_rate, projection_fn)
    data = arrays(data)
    budget = {"epsilon": epsilon, "delta": delta}
    batches = _batches(data, num_steps, batching, execution, budget)
    multiplier, privacy = calibrated_noise(
        estimator,
        batches.start.batching,
        num_samples=batches.start.num_samples,
        num_steps=batches.start.num_steps,
        unit=unit_of(data),
        **budget,
    )
    step = PrivateStep(
        loss_fn=loss_fn,
        batches=batches,
        estimator=estimator,
        noise_multiplier=traceable(estimator, multiplier),
        optimizer_fn=Descent(projection_fn, bool(averaging)),
        learning_rate=_static(learning_rate),
    )
    params, stats = _run(step, params, data, key, execution)
    stats |= step.noise_parameters(num_coordinates(params))
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
    """Minimizes the mean loss along robust means of gradients, WITHOUT privacy.

    This is `dp_gradient_descent` without noise, the baseline RGD of paper 001. With the
    estimator `Mean` it is plain gradient descent.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start.
        data: pytree, leaves of shape (n, ...).
        estimator: the robust mean.
        learning_rate: step size, or an optax schedule of the step.
        num_steps: T; by default ceil(10 log n).
        batching: the batch of each step; all records by default.
        key: a typed key; needed if batching draws at random.
        projection_fn: maps parameters into the constraint set.
        averaging: whether to return the mean of the iterates instead of the last.
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution` with a guarantee of epsilon = inf, which is no privacy.

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
    check_descent(loss_fn, learning_rate, projection_fn)
    _validate.estimator(estimator)
    # The capacity of a Poisson batch depends on a budget. There is none here, so this
    # uses epsilon = 1 and delta = 1e-5.
    data = arrays(data)
    budget = {"epsilon": 1.0, "delta": 1e-5}
    batches = _batches(data, num_steps, batching, execution, budget)
    rule = f"given where batches are drawn, as by {batching}"
    _validate.require(key is not None or not batches.is_sampled, "key", key, rule)
    key = jax.random.key(0) if key is None else key  # nothing is drawn with it
    check_key_of_rows(key, data)
    step = PrivateStep(
        loss_fn=loss_fn,
        batches=batches,
        estimator=estimator,
        noise_multiplier=None,
        optimizer_fn=Descent(projection_fn, bool(averaging)),
        learning_rate=_static(learning_rate),
    )
    params, stats = _run(step, params, data, key, execution)
    return Solution(params, PrivacyGuarantee.non_private(), stats)


def check_descent(
    loss_fn: Any, learning_rate: optax.ScalarOrSchedule, projection_fn: Any
) -> None:
    """Raises unless the arguments are a loss, a step size or schedule, a projection."""
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    is_fine = projection_fn is None or callable(projection_fn)
    _validate.require(is_fine, "projection_fn", projection_fn, "callable")
    if not callable(learning_rate):
        _validate.positive(learning_rate=learning_rate)


def default_num_steps(num_samples: int) -> int:
    """Returns ceil(10 log n), at least 1."""
    return max(1, math.ceil(10 * math.log(num_samples)))


def _batches(
    data: PyTree,
    num_steps: int | None,
    batching: Batching | None,
    execution: Execution,
    budget: dict[str, float],
) -> Batches:
    """Returns the batches of a run; by default each has all records."""
    if num_steps is None:
        num_steps = default_num_steps(_validate.leading_size(data, "data"))
    batching = Full() if batching is None else batching
    return Batches.of(data, num_steps, batching, execution, **budget)


def _static(learning_rate: Any) -> Any:
    """Returns a learning rate, static if it is a schedule but no `Partial`."""
    is_static = callable(learning_rate) and not isinstance(learning_rate, Partial)
    return Static(learning_rate) if is_static else learning_rate


def _run(
    step: PrivateStep, params: PyTree, data: PyTree, key: Key, execution: Execution
) -> tuple[PyTree, dict[str, Scalar]]:
    """Returns the released iterate, and the stats of the run."""
    params, state = iterate(step, params, data, key=key, execution=execution)
    batches = step.batches
    stats = {"num_steps": batches.start.num_steps, "batch_size": batches.divisor}
    is_average = cast(Descent, step.optimizer_fn).averaging
    return average_params(state) if is_average else params, stats
