"""Gradient descent over the records of several parties (paper 002, Algorithm 1)."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import _validate
from dpjax._tree import arrays
from dpjax._types import REPLACE_ONE, LossFn, PyTree, RandomBytes
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
from dpjax.parties._quantize import Grid
from dpjax.solvers.papers._gradient_descent import Descent, ProjectionFn
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

    w <- Proj(w - eta/N·sum over k of (n_k·(robust mean of party k's gradients) + Z_k)),
    with fresh discrete Gaussian noise Z_k in every round. Every party calls this with
    its own data and otherwise equal arguments, and all get the same solution.

    In each round a party rounds its contribution to a grid, adds its share of the noise
    and a mask modulo 2^64, and sends the result. The masks cancel in the sum over the
    parties, and only the sum can be read.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: initial parameters; public, the same for all parties.
        data: this party's records, leaves of shape (n_k, ...). The numbers n_k of all
            parties are public.
        secure_sum: `parties.SecureSum(transport)` of this party, with the number of
            parties that may collude (C) and drop out (D).
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, with a finite sensitivity; its scale is public.
        learning_rate: step size eta, or an optax schedule of the step.
        num_steps: T; by default ceil(10 log N), N the number of all records.
        projection_fn: maps parameters into the constraint set.
        averaging: whether to release the mean of the iterates instead of the last.
        execution: microbatches, and a callback of this party. It may differ between
            parties; a checkpoint is rejected.

    Returns:
        A `Solution`. Its stats hold num_steps, num_samples (N), num_parties, num_live
        (parties that did not drop out), l2_sensitivity and stddev of the noise that is
        certainly secret, both of the sum, and noise_multiplier = stddev /
        l2_sensitivity.

    Raises:
        ValueError: If an argument is out of its range.
        PartyError: If another party's arguments differ, before any record is used; it
            names the arguments. Functions are compared by their programs (see
            `SecureSum.agree`), estimators by class names and fields, records by shapes
            and dtypes; `execution` is not compared. Later, if more than D parties sent
            nothing, or a wrong size; nothing of that round is released.

    Privacy:
        (epsilon, delta)-DP under replace-one, for each record of the parties that do
        not collude, against C parties that share all messages and all they know, and
        hence against everybody with the transcript. They get at most T + D sums
        (`parties.SecureSum`), each with the shares of at least K - C - D others. Each
        share is an exact discrete Gaussian from the entropy of its party. Replacing a
        record of party k moves the sum by n_k times the sensitivity of its mean, and
        the grid adds 2 sqrt(d) steps. `accounting.discrete_gaussian_stddev` calibrates
        the noise, and its proof is for integers: no last bits of floats can leak.

        The masks rely on cryptography: nothing is claimed against unbounded
        adversaries, or against parties that break the protocol. Dropouts, loss, params,
        step sizes and T must not depend on the records.

        The paper adds the SAME noise in every round. Then differences of its sums have
        no noise, and distinguish neighboring data sets with certainty. For a trusted
        aggregator use `dp_multiparty_objective_perturbation`.

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
        >>> solutions = run_parties(train, 4)
        >>> print(solutions[0].params.round(1))
        [1. 2.]

    Reference:
        Rajkumar, Agarwal (2012), A differentially private stochastic gradient descent
        algorithm for multiparty classification, Algorithm 1 and Proposition 3.1, with
        fresh noise. Kairouz, Liu, Steinke (2021), The distributed discrete Gaussian
        mechanism for federated learning with secure aggregation, Theorem 1.
    """
    check_budget(epsilon, delta)
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    _validate.bounded_estimator(estimator)
    if callable(learning_rate):
        schedule, step_size = learning_rate, None
    else:
        _validate.positive(learning_rate=learning_rate)
        schedule, step_size = None, float(learning_rate)
    if num_steps is not None:
        _validate.count(num_steps=num_steps)
    check_execution(execution)
    rule = "None: a round of several parties cannot be resumed"
    is_fine = execution.checkpoint is None
    _validate.require(is_fine, "checkpoint", execution.checkpoint, rule)
    _validate.require(
        isinstance(secure_sum, SecureSum), "secure_sum", secure_sum, "a SecureSum"
    )
    data = arrays(data)
    num_mine = _validate.leading_size(data, "data")
    method = _Method(
        loss_fn, execution.microbatch_size, schedule, Descent(projection_fn, averaging)
    )
    state = method.optimizer(step_size).init(params)
    start, record = jax.eval_shape(
        lambda params, data: (params, jax.tree.map(lambda x: x[0], data)), params, data
    )
    settings = {
        "params": params,
        "data": jax.tree.map(lambda x: str((x.shape, x.dtype)), record),
        "epsilon": float(epsilon),
        "delta": float(delta),
        "estimator": (str(jax.tree.structure(estimator)), estimator),
        "num_steps": num_steps,
        "averaging": averaging,
        "loss_fn": _grad.trace(loss_fn, start, record),
        "learning_rate": (step_size, schedule and _call.trace(schedule, jnp.int32(0))),
        "projection_fn": projection_fn and _call.trace(projection_fn, start),
    }
    num_records = secure_sum.agree(settings, num_mine)
    num_samples = sum(num_records)
    if num_steps is None:
        num_steps = max(1, math.ceil(10 * math.log(num_samples)))
    num_releases = num_steps + secure_sum.max_dropouts
    noise = _Noise.calibrated(
        estimator,
        num_records,
        num_params=sum(np.size(leaf) for leaf in jax.tree.leaves(params)),
        num_shares=secure_sum.num_secret_shares,
        num_releases=num_releases,
        epsilon=epsilon,
        delta=delta,
    )
    shapes = jax.eval_shape(partial(_mean_grad, method), params, data, estimator)
    for step in range(1, num_steps + 1):

        def contribution(params: PyTree = params) -> np.ndarray:
            mean = _mean_grad(method, params, data, estimator)
            return noise.add(num_mine * _to_vector(mean), secure_sum.random_bytes)

        total = noise.grid.to_reals(secure_sum(contribution, noise.num_params))
        divisor = sum(num_records[k] for k in secure_sum.live)
        grads = _to_tree(total / divisor, shapes)
        params, state = _move(method, params, state, grads, step_size)
        is_due = step % execution.callback_every == 0 or step == num_steps
        if execution.callback is not None and is_due:
            execution.callback(step, params)
    return Solution(
        average_params(state) if averaging else params,
        PrivacyGuarantee.of(
            epsilon,
            delta,
            dp_event=gaussian_event(noise.multiplier, Sampling(num_steps=num_releases)),
            relation=REPLACE_ONE,
            num_samples=num_samples,
        ),
        {
            "num_steps": num_steps,
            "num_samples": num_samples,
            "num_parties": len(num_records),
            "num_live": len(secure_sum.live),
            "l2_sensitivity": noise.l2_sensitivity,
            "stddev": noise.stddev,
            "noise_multiplier": noise.multiplier,
        },
    )


class _Method(NamedTuple):
    """The static part of a descent: another one is compiled again."""

    loss_fn: LossFn
    microbatch_size: int | None
    schedule: Any
    descent: Descent

    def optimizer(self, step_size: Any) -> optax.GradientTransformation:
        return self.descent(self.schedule or step_size)


# The parties compare the programs of these two; nobody runs them.
@partial(jax.jit, static_argnums=0)
def _call(fn: Callable[[PyTree], PyTree], argument: PyTree) -> PyTree:
    return fn(argument)


@partial(jax.jit, static_argnums=0)
def _grad(loss_fn: LossFn, params: PyTree, record: PyTree) -> PyTree:
    return jax.grad(loss_fn)(params, record)


@partial(jax.jit, static_argnums=0)
def _mean_grad(
    method: _Method, params: PyTree, data: PyTree, estimator: Estimator
) -> PyTree:
    grad_fn = robust_grad(
        method.loss_fn, estimator, microbatch_size=method.microbatch_size
    )
    return grad_fn(params, data)


@partial(jax.jit, static_argnums=0)
def _move(
    method: _Method, params: PyTree, state: Any, grads: PyTree, step_size: Any
) -> tuple[PyTree, Any]:
    updates, state = method.optimizer(step_size).update(grads, state, params)
    return optax.apply_updates(params, updates), state


class _Noise(NamedTuple):
    """A party's share of the noise of a round, as integers on a grid.

    Attributes:
        grid: the grid of the sum of gradients.
        share: stddev of a party's share, in steps.
        stddev: stddev of the noise that is certainly secret, in units of the sum.
        l2_sensitivity: that of the sum, in its units, with rounding to the grid.
        num_params: d.
    """

    grid: Grid
    share: int
    stddev: float
    l2_sensitivity: float
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
        # A replaced record moves only its party's contribution. A float32 sensitivity
        # has been rounded a few times, by 2^-24 each.
        sensitivity = (1 + 2.0**-21) * max(
            n * float(estimator.sensitivity(n, num_params).l2) for n in num_records
        )
        continuous = gaussian_stddev(
            epsilon, delta, sensitivity=sensitivity, num_releases=num_releases
        )
        limit = float(np.max(np.asarray(estimator.limit)))
        grid = Grid.for_stddev(
            continuous / math.sqrt(num_shares), bound=max(num_records) * limit
        )
        steps = grid.sensitivity(sensitivity, num_params)
        share = discrete_gaussian_stddev(
            epsilon,
            delta,
            sensitivity=steps,
            num_shares=num_shares,
            num_coordinates=num_params,
            num_releases=num_releases,
        )
        stddev = math.sqrt(num_shares) * share * grid.step
        return cls(grid, share, stddev, steps * grid.step, num_params)

    @property
    def multiplier(self) -> float:
        return self.stddev / self.l2_sensitivity

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
    ends = np.cumsum([leaf.size for leaf in leaves])
    return jax.tree.unflatten(
        structure,
        [
            jnp.asarray(part.reshape(leaf.shape), leaf.dtype)
            for part, leaf in zip(np.split(vector, ends[:-1]), leaves, strict=True)
        ],
    )
