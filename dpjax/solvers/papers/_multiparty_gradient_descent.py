"""Gradient descent over the records of several parties (paper 002, Algorithm 1)."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import _validate
from dpjax._tree import arrays, num_coordinates
from dpjax._types import LossFn, PyTree, RandomBytes
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    discrete_gaussian_stddev,
    gaussian_event,
    gaussian_stddev,
)
from dpjax.estimators import Estimator
from dpjax.gradients import robust_grad
from dpjax.mechanisms import discrete_gaussian
from dpjax.parties import SecureSum
from dpjax.parties._secure_sum import Grid
from dpjax.solvers.papers._gradient_descent import (
    Descent,
    ProjectionFn,
    check_descent,
    default_num_steps,
)
from dpjax.solvers.training._calibration import check_budget
from dpjax.solvers.training._loop import Execution, check_execution
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import average_params


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
        PartyError: If another party's arguments differ (see `SecureSum.agree`), before
            any record is used; only `execution` and the records may differ. Later, if
            more than D parties send nothing or a wrong size; nothing of that round is
            released.

    Privacy:
        (epsilon, delta)-DP under replace-one, for each record of the parties that do
        not collude, against C parties that share all messages and all they know, and
        hence against everybody with the transcript. They get at most T + D sums, each
        with the exact discrete Gaussian shares of at least K - C - D other parties (of
        K). Replacing a record of party k moves the sum by n_k times the sensitivity of
        its mean, and the grid adds 2 sqrt(d) steps: no last bits of floats can leak
        (`accounting.discrete_gaussian_stddev`). The masks rely on cryptography: nothing
        is claimed against unbounded adversaries, or against parties that break the
        protocol. Dropouts, and all arguments but data, must not depend on the records.

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
        "The distributed discrete Gaussian mechanism for federated learning with secure
        aggregation", Theorem 1.
    """
    check_budget(epsilon, delta)
    check_descent(loss_fn, learning_rate, projection_fn)
    _validate.bounded_estimator(estimator)
    if num_steps is not None:
        _validate.count(num_steps=num_steps)
    check_execution(execution, "None: a round of several parties cannot be resumed")
    is_fine = isinstance(secure_sum, SecureSum)
    _validate.require(is_fine, "secure_sum", secure_sum, "a SecureSum")
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
    if num_steps is None:
        num_steps = default_num_steps(sum(num_records))
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
        "num_samples": sum(num_records),
        "num_parties": len(num_records),
        "num_live": len(secure_sum.live),
        "l2_sensitivity": noise.l2_sensitivity,
        "stddev": noise.stddev,
        "noise_multiplier": multiplier,
    }
    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=sum(num_records)
    )
    return Solution(params, privacy, stats)


class _Method(NamedTuple):
    """The static arguments of a descent, for which its functions are compiled."""

    loss_fn: LossFn
    microbatch_size: int | None
    schedule: Any
    descent: Descent

    def optimizer(self, step_size: Any) -> optax.GradientTransformation:
        return self.descent(self.schedule or step_size)


# The parties compare the programs of `_call` and `_grad`; nobody runs them.
@partial(jax.jit, static_argnums=0)
def _call(fn: Callable[[PyTree], PyTree], argument: PyTree) -> PyTree:
    return fn(argument)


@partial(jax.jit, static_argnums=0)
def _grad(loss_fn: LossFn, params: PyTree, record: PyTree) -> PyTree:
    return jax.grad(loss_fn)(params, record)


def _programs(
    method: _Method,
    params: PyTree,
    data: PyTree,
    estimator: Estimator,
    step_size: float | None,
) -> dict[str, PyTree]:
    """Returns the settings that parties compare, with functions as traced programs."""
    start, record = jax.eval_shape(
        lambda params, data: (params, jax.tree.map(lambda x: x[0], data)), params, data
    )
    schedule, project = method.schedule, method.descent.projection_fn
    return {
        "params": params,
        "data": jax.tree.map(lambda x: str((x.shape, x.dtype)), record),
        "estimator": (str(jax.tree.structure(estimator)), estimator),
        "averaging": method.descent.averaging,
        "loss_fn": _grad.trace(method.loss_fn, start, record),
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
    method: _Method,
    parties: tuple[SecureSum, "_Noise", Sequence[int]],
    mean_fn: Callable[[PyTree], PyTree],
    params: PyTree,
    step_size: float | None,
    num_steps: int,
    execution: Execution,
) -> PyTree:
    """Returns the last iterate, or the mean of all iterates."""
    secure_sum, noise, num_records = parties
    num_mine = num_records[secure_sum.transport.party]
    shapes = jax.eval_shape(mean_fn, params)
    state = method.optimizer(step_size).init(params)
    for step in range(1, num_steps + 1):

        def contribution(params: PyTree = params) -> np.ndarray:
            vector = num_mine * _to_vector(mean_fn(params))
            return noise.add(vector, secure_sum.random_bytes)

        total = noise.grid.to_reals(secure_sum(contribution, noise.num_params))
        divisor = sum(num_records[k] for k in secure_sum.live)
        mean = _to_tree(total / divisor, shapes)
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
        num_releases: int,
        epsilon: float,
        delta: float,
    ) -> "_Noise":
        """Returns the smallest noise for the budget, on a much finer grid."""
        # A replaced record moves only its party's contribution. The factor covers a few
        # roundings of a float32 sensitivity, by 2^-24 each.
        sensitivity = (1 + 2.0**-21) * max(
            n * float(estimator.sensitivity(n, num_params).l2) for n in num_records
        )
        budget = {"epsilon": epsilon, "delta": delta, "num_releases": num_releases}
        continuous = gaussian_stddev(**budget, sensitivity=sensitivity)
        bound = max(num_records) * float(np.max(np.asarray(estimator.limit)))
        grid = Grid.for_stddev(continuous / math.sqrt(num_shares), bound=bound)
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


def _to_tree(vector: np.ndarray, shapes: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(shapes)
    parts = np.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    pairs = zip(parts, leaves, strict=True)
    arrays = [jnp.asarray(part.reshape(x.shape), x.dtype) for part, x in pairs]
    return jax.tree.unflatten(structure, arrays)
