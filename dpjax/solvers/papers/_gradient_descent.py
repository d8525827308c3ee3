"""Robust gradient descent: private (001, 003), of parties (002), and not private."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import Static, arrays, flatten, num_coordinates
from dpjax._types import Key, LossFn, PyTree, RandomBytes, Scalar
from dpjax.accounting import PrivacyGuarantee, Sampling, gaussian_stddev
from dpjax.accounting._discrete_gaussian import discrete_gaussian_stddev
from dpjax.accounting._subsampling import gaussian_event
from dpjax.batching import Full
from dpjax.batching._batching import Batching
from dpjax.estimators import Estimator
from dpjax.gradients import robust_grad
from dpjax.mechanisms import discrete_gaussian
from dpjax.parties import SecureSum
from dpjax.parties._secure_sum import Grid
from dpjax.solvers.training._calibration import (
    calibrated_noise,
    check_budget,
    traceable,
    unit_of,
)
from dpjax.solvers.training._loop import (
    Batches,
    Execution,
    PrivateStep,
    check_execution,
    iterate,
)
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import average_iterates, average_params, project

# With so many steps discrete noise costs as much as continuous noise, and rounding is
# negligible: d/2 per 2^48 of the variance of the noise.
_STEPS_PER_STDDEV = 2**24

ProjectionFn = Callable[[PyTree], PyTree]


class Descent(NamedTuple):
    """Makes projected gradient descent for a learning rate: w <- Proj(w - eta·mean)."""

    projection_fn: ProjectionFn | None
    averaging: bool

    def __call__(self, learning_rate: Any) -> optax.GradientTransformation:
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
        l2_sensitivity and stddev; with `TrimmedMean`, a step's rho (zCDP) instead.

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
    _check_descent(loss_fn, learning_rate, projection_fn)
    data = arrays(data)
    budget: Any = {"epsilon": epsilon, "delta": delta}
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
    _check_descent(loss_fn, learning_rate, projection_fn)
    _validate.estimator(estimator)
    data = arrays(data)
    # The capacity of a Poisson batch depends on a budget. There is none here, so this
    # uses epsilon = 1 and delta = 1e-5.
    budget = {"epsilon": 1.0, "delta": 1e-5}
    batches = _batches(data, num_steps, batching, execution, budget)
    rule = f"given with {batching}, which draws batches by it"
    is_fine = key is not None or not batches.start.batching.is_sampled
    _validate.require(is_fine, "key", key, rule)
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


def dp_multiparty_gradient_descent(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    secure_sum: SecureSum,
    epsilon: float,
    delta: float,
    estimator: Estimator,
    learning_rate: optax.ScalarOrSchedule,
    num_steps: int | None = None,
    projection_fn: ProjectionFn | None = None,
    averaging: bool = False,
    execution: Execution = Execution(),
) -> Solution:
    """Minimizes the mean loss over all parties' records, which stay with their party.

    A step is w <- Proj(w - eta/N·sum_k (n_k·g_k + Z_k)), where g_k is the robust mean
    of party k's gradients, and Z_k is fresh discrete Gaussian noise. Every party calls
    this function with its own data and otherwise equal arguments, and gets the same
    solution. Masks hide each party's term, and cancel in the sum. For a trusted
    aggregator use `dp_multiparty_objective_perturbation`.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: this party's records, leaves of shape (n_k, ...); all n_k are public.
        secure_sum: `parties.SecureSum(transport)` of this party, with the number of
            parties that may collude (C) and drop out (D).
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, with a finite sensitivity; its scale is public.
        learning_rate: eta, or an optax schedule of the step.
        num_steps: T; by default ceil(10 log N), N the number of all records.
        projection_fn: maps parameters into the constraint set.
        averaging: whether to release the mean of the iterates instead of the last.
        execution: microbatches, and a callback of this party; no checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, num_samples (N), num_parties, num_live
        (parties that did not drop out); l2_sensitivity of the sum, stddev of the
        sum's noise that is certainly secret, and noise_multiplier, their quotient.

    Raises:
        ValueError: If an argument is out of its range.
        RuntimeError: If another party's arguments differ (see `SecureSum.agree`),
            before any record is used; only `execution` and the records may differ.
            Later, before a release, if over D parties send nothing or a wrong size.

    Privacy:
        (epsilon, delta)-DP under replace-one, for each record of the parties that do
        not collude, against C parties that share all messages and all they know, and
        hence against everybody with the transcript. They get at most T + D sums, each
        with the exact discrete Gaussian shares of at least K - C - D other parties (of
        K). Replacing a record of party k moves the sum by n_k times the sensitivity of
        its mean, and the grid adds 2 sqrt(d) steps: no last bits of floats can leak
        (`docs/privacy/proofs/mechanisms.md`, 2.8). The masks rely on cryptography:
        nothing is claimed against unbounded adversaries, or against parties that break
        the protocol. Dropouts, and all arguments but data, must not depend on the
        records.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses
        >>> from dpjax.estimators import Clipping
        >>> from dpjax.parties import SecureSum, run_parties
        >>> features = jax.random.normal(jax.random.key(0), (4, 5000, 2))
        >>> targets = features @ jnp.array([1.0, 2.0])
        >>> def train(transport):
        ...     k = transport.party
        ...     return dp_multiparty_gradient_descent(
        ...         losses.squared, jnp.zeros(2), (features[k], targets[k]),
        ...         secure_sum=SecureSum(transport), epsilon=1.0, delta=1e-6,
        ...         estimator=Clipping(2.0), learning_rate=0.5, num_steps=20)
        >>> print(run_parties(train, 4)[0].params.round(1))
        [1. 2.]

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 1 and Proposition 3.1, but with fresh noise
        in each round: with the paper's noise, which stays the same, differences of sums
        distinguish neighboring data sets with certainty. Kairouz, Liu, Steinke (2021),
        "The distributed discrete Gaussian mechanism", Theorem 1.
    """
    check_budget(epsilon, delta)
    _check_descent(loss_fn, learning_rate, projection_fn)
    _validate.bounded_estimator(estimator)
    if num_steps is not None:
        _validate.count(num_steps=num_steps)
    check_execution(execution, "None: a round of several parties cannot be resumed")
    is_fine = isinstance(secure_sum, SecureSum)
    _validate.require(is_fine, "secure_sum", secure_sum, "a dpjax.parties.SecureSum")
    data = arrays(data)
    num_mine = _validate.leading_size(data, "data")
    schedule = learning_rate if callable(learning_rate) else None
    descent = Descent(projection_fn, averaging)
    method = _Method(loss_fn, execution.microbatch_size, schedule, descent)
    step_size = None if schedule else float(cast(float, learning_rate))
    budget = {"epsilon": float(epsilon), "delta": float(delta)}
    settings = budget | {"num_steps": num_steps}
    settings |= _programs(method, params, data, estimator, step_size)
    # `agree` raises if settings differ between parties, before any record is used.
    num_records = secure_sum.agree(settings, num_mine)
    num_all = sum(num_records)
    num_steps = _default_num_steps(num_all) if num_steps is None else num_steps
    num_releases = num_steps + secure_sum.max_dropouts
    noise = _Noise.calibrated(
        estimator,
        num_records,
        num_params=num_coordinates(params),
        num_shares=secure_sum.num_secret_shares,
        num_releases=num_releases,
        **budget,
    )
    mean_fn = partial(_mean_grad, method, data=data, estimator=estimator)
    parties = secure_sum, noise, num_records
    params = _descend(method, parties, mean_fn, params, step_size, num_steps, execution)
    multiplier = noise.stddev / noise.l2_sensitivity
    event = gaussian_event(multiplier, Sampling(num_steps=num_releases))
    stats = {
        "num_steps": num_steps,
        "num_samples": num_all,
        "num_parties": len(num_records),
        "num_live": len(secure_sum.live),
        "l2_sensitivity": noise.l2_sensitivity,
        "stddev": noise.stddev,
        "noise_multiplier": multiplier,
    }
    privacy = PrivacyGuarantee.of(epsilon, delta, dp_event=event, num_samples=num_all)
    return Solution(params, privacy, stats)


def _check_descent(
    loss_fn: Any, learning_rate: optax.ScalarOrSchedule, projection_fn: Any
) -> None:
    """Requires callables (or no projection_fn), and a step size > 0 or a schedule."""
    _validate.loss_fn(loss_fn)
    is_fine = projection_fn is None or callable(projection_fn)
    _validate.require(is_fine, "projection_fn", projection_fn, "callable")
    if not callable(learning_rate):
        _validate.positive(learning_rate=learning_rate)


def _default_num_steps(num_samples: int) -> int:
    """Returns ceil(10 log n), at least 1."""
    return max(1, math.ceil(10 * math.log(num_samples)))


def _batches(data, num_steps, batching, execution, budget) -> Batches:
    """Returns the batches of a run; by default each has all records."""
    if num_steps is None:
        num_steps = _default_num_steps(_validate.leading_size(data, "data"))
    batching = Full() if batching is None else batching
    return Batches.of(data, num_steps, batching, execution, **budget)


def _static(learning_rate: Any) -> Any:
    """Returns a learning rate, static if it is a schedule but no `Partial`."""
    is_static = callable(learning_rate) and not isinstance(learning_rate, Partial)
    return Static(learning_rate) if is_static else learning_rate


def _run(
    step: PrivateStep, params: PyTree, data: PyTree, key: Key, execution: Execution
) -> tuple[PyTree, dict[str, Scalar]]:
    """Returns the last params, or the iterates' mean if `averaging`, and stats."""
    params, state = iterate(step, params, data, key=key, execution=execution)
    batches = step.batches
    stats = {"num_steps": batches.start.num_steps, "batch_size": batches.divisor}
    is_average = cast(Descent, step.optimizer_fn).averaging
    return average_params(state) if is_average else params, stats


class _Method(NamedTuple):
    """The static arguments of a descent, for which its functions are compiled."""

    loss_fn: LossFn
    microbatch_size: int | None
    schedule: Any
    descent: Descent

    def optimizer(self, step_size: Any) -> optax.GradientTransformation:
        return self.descent(self.schedule or step_size)


# The parties compare programs of `_call`; nobody runs them.
@partial(jax.jit, static_argnums=0)
def _call(fn: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    return fn(*arguments)


def _programs(method: _Method, params, data, estimator, step_size) -> dict[str, Any]:
    """Returns by name the settings that parties compare by `SecureSum.agree`."""
    # All parties must make the same steps. Functions are traced, and compared as text;
    # of the data, a record's shapes and dtypes. step_size is None with a schedule.
    start, record = jax.eval_shape(
        lambda params, data: (params, jax.tree.map(lambda x: x[0], data)), params, data
    )
    schedule, project = method.schedule, method.descent.projection_fn
    return {
        "params": params,
        "data": jax.tree.map(lambda x: str((x.shape, x.dtype)), record),
        "estimator": (str(jax.tree.structure(estimator)), estimator),
        "averaging": method.descent.averaging,
        "loss_fn": _call.trace(jax.grad(method.loss_fn), start, record),
        "learning_rate": (step_size, schedule and _call.trace(schedule, jnp.int32(0))),
        "projection_fn": project and _call.trace(project, start),
    }


@partial(jax.jit, static_argnums=0)
def _mean_grad(
    method: _Method, params: PyTree, data: PyTree, estimator: Estimator
) -> PyTree:
    size = method.microbatch_size
    return robust_grad(method.loss_fn, estimator, microbatch_size=size)(params, data)


def _descend(
    method: _Method, parties, mean_fn, params, step_size, num_steps, execution
):
    """Returns a party's params after all steps: the last iterate, or a mean of all.

    In each step this party adds its noise to its number of records times its robust
    mean gradient `mean_fn(params)`, and all parties move along the secure sum of these
    vectors. `parties` has the secure sum, this party's noise, and all record counts.
    """
    secure_sum, noise, num_records = parties
    num_mine = num_records[secure_sum.transport.party]
    start, restored = flatten(params, "params")
    state = method.optimizer(step_size).init(params)
    for step in range(1, num_steps + 1):

        def contribution(params: PyTree = params) -> np.ndarray:
            vector = num_mine * _to_vector(mean_fn(params))
            return noise.add(vector, secure_sum.random_bytes)

        total = noise.grid.to_reals(secure_sum(contribution, noise.num_params))
        divisor = sum(num_records[k] for k in secure_sum.live)
        mean = restored(jnp.asarray(total / divisor, start.dtype))
        params, state = _move(method, params, state, mean, step_size)
        is_due = step % execution.callback_every == 0 or step == num_steps
        if execution.callback is not None and is_due:
            execution.callback(step, params)
    return average_params(state) if method.descent.averaging else params


@partial(jax.jit, static_argnums=0)
def _move(
    method: _Method, params: PyTree, state: Any, grads: PyTree, step_size: Any
) -> tuple[PyTree, Any]:
    updates, state = method.optimizer(step_size).update(grads, state, params)
    return optax.apply_updates(params, updates), state


class _Noise(NamedTuple):
    """A party's share of the noise of a round, as integers on a grid."""

    grid: Grid  # of the sum of gradients
    share: int  # stddev of a party's share, in steps of the grid
    stddev: float  # of the sum of all shares that are certainly secret
    l2_sensitivity: float  # of the sum, with rounding to the grid
    num_params: int

    @classmethod
    def calibrated(
        cls,
        estimator: Estimator,
        num_records: Sequence[int],
        *,
        num_params: int,
        num_shares: int,
        **budget: Any,
    ) -> "_Noise":
        """Returns the least noise of each party with which all sums meet the budget.

        num_records has each party's number of records, num_params is the length of a
        gradient, num_shares the number of parties whose noise is certainly secret, and
        `budget` has epsilon, delta and num_releases. Rounding to the grid costs little.
        """
        # A replaced record moves only its party's contribution. The factor covers a few
        # roundings of a float32 sensitivity, by 2^-24 each.
        sensitivity = (1 + 2.0**-21) * max(
            n * float(estimator.sensitivity(n, num_params).l2) for n in num_records
        )
        continuous = gaussian_stddev(**budget, sensitivity=sensitivity)
        bound = max(num_records) * float(np.max(np.asarray(estimator.limit)))
        step = continuous / math.sqrt(num_shares) / _STEPS_PER_STDDEV
        grid = Grid.of(step, bound=bound)
        steps = grid.sensitivity(sensitivity, num_params)
        share = discrete_gaussian_stddev(
            **budget,
            sensitivity=steps,
            num_shares=num_shares,
            num_coordinates=num_params,
        )
        stddev = math.sqrt(num_shares) * share * grid.step
        return cls(grid, share, stddev, steps * grid.step, num_params)

    def add(self, values: np.ndarray, random_bytes: RandomBytes) -> np.ndarray:
        """Returns values on the grid, as integers, with a fresh share of noise."""
        noise = discrete_gaussian(
            values.shape, stddev=self.share, random_bytes=random_bytes
        )
        return self.grid.to_integers(values) + noise


def _to_vector(tree: PyTree) -> np.ndarray:
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(-1) for leaf in leaves])
