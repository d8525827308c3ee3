"""Gradient descent and training runs under attack, with every batching.

A record, or a user, is the gradient with the largest influence, and turns round: the
loss is linear in the parameters, so that an example is its gradient.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import UnsupportedDpEvent

from benchmarks.audits.case import Case, audited, last_turned, linear, solved
from dpjax import accounting, batching, losses, solvers
from dpjax._types import ADD_OR_REMOVE_ONE, Key, PyTree
from dpjax.estimators import Clipping, TrimmedMean
from dpjax.gradients import by_user
from dpjax.mechanisms import BandedToeplitz
from dpjax.solvers import Solution

_FAR = [3e9, 4e9]
_BOUNDED = {"epsilon": 4.0, "delta": 1e-5, "moment_bound": 1.0, "moment_order": 32.0}


def _longest_last(step: jax.Array) -> jax.Array:
    """The rate of two steps, of which nearly the last alone counts."""
    return 0.01 + 0.99 * step.astype(jnp.float32)


@audited
def dp_gradient_descent() -> Case:
    """Both steps see the record, and their noise adds up."""
    return _descended(_record(2))


@audited
def dp_gradient_descent_disjoint() -> Case:
    """The last step sees the record, and is the longest."""
    options = {"batching": batching.Disjoint(), "learning_rate": _longest_last}
    return _descended(_record(2), **options)


@audited
def dp_gradient_descent_poisson() -> Case:
    """Both steps see the record with probability 1/4 each."""
    return _sampled(batching.Poisson(1.0))


@audited
def dp_gradient_descent_without_replacement() -> Case:
    """Both steps see the record with probability 3/4 each."""
    return _sampled(batching.WithoutReplacement(3))


@audited
def dp_gradient_descent_trimmed() -> Case:
    """Both steps see the median cross the clamp."""
    data = jnp.array(np.outer([-9.0, 9.0, 9.0], np.ones(8)), "float32")
    options = {"epsilon": 2.0, "delta": 0.05, "is_gaussian": False}
    return _descended(
        data, estimator=TrimmedMean(0.34, lower=-1.0, upper=1.0), **options
    )


@audited
def dp_gradient_descent_cyclic() -> Case:
    """The longest step sees the record with probability 1/2."""
    draws = batching.CyclicPoisson(1.0, cycle_length=2)
    return _sampled(draws, learning_rate=_longest_last)


@audited
def dp_gradient_descent_bins() -> Case:
    """One of two steps sees the record, each with probability 1/2."""
    return _sampled(batching.BallsInBins(2))


@audited
def dp_gradient_descent_group() -> Case:
    """Two records turn, which may enter each step, with probability 1/2 each."""
    draws, data, delta = batching.Poisson(2.0, capacity=4), _record(4), 0.01
    case = _descended(
        data.at[0].set(data[-1]),
        data.at[jnp.array([0, -1])].set(-data[-1]),
        epsilon=1.5,
        delta=delta,
        is_gaussian=False,
        batching=draws,
    )
    step = accounting.noise_multiplier(1.5, delta, draws.sampling(4, 2))
    epsilon = accounting.noise_multiplier_to_epsilon(
        step, delta, draws.sampling(4, 2, group_size=2)
    )
    claim = accounting.PrivacyGuarantee.of(
        epsilon, delta, dp_event=UnsupportedDpEvent(), unit="group of up to 2 records"
    )
    return dataclasses.replace(case, privacy=claim)


@audited
def dp_gradient_descent_epochs() -> Case:
    """Each step is an epoch, which sees the record once."""
    return _descended(_record(2), batching=batching.ShuffledEpochs(2))


@audited
def dp_gradient_descent_users() -> Case:
    """A user's one record turns round, and more records come."""
    ids = jnp.array([0, 1, 5, -1])
    samples = jnp.array([[0.0, 0.0], _FAR, [1.0, 1.0], [9.0, 9.0]])

    def grouped(samples: jax.Array, ids: jax.Array) -> PyTree:
        return by_user(samples, ids, num_users=2, records_per_user=3)

    turned = samples.at[1:].set(-jnp.asarray(_FAR))
    return _descended(grouped(samples, ids), grouped(turned, ids.at[2:].set(1)))


@audited
def dp_localized_sco() -> Case:
    """All steps of the last phase see the record, and their noise adds up."""
    given = {"diameter": 100.0, "smoothness": 0.01, "num_steps": 2, **_BOUNDED}

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_localized_sco(linear, jnp.zeros(2), data, key=key, **given)

    return solved(solve, _record(80), -_record(80), is_gaussian=True)


@audited
def dp_one_pass_sco() -> Case:
    """The first step of the one phase sees the record, and all iterates after it."""
    loss, given = losses.huber(10.0), {"diameter": 1.0, **_BOUNDED}

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_one_pass_sco(loss, jnp.zeros(2), data, key=key, **given)

    features = jnp.zeros((60, 2)).at[0].set(jnp.array([0.6, 0.8]))
    targets = jnp.zeros(60).at[0].set(1e30)
    return solved(solve, (features, targets), (features, -targets), is_gaussian=True)


@audited
def private_training() -> Case:
    """Both steps see the record, and their noise adds up."""
    return _trained(_record(2), batching=batching.Full())


@audited
def private_training_monitor() -> Case:
    """Gradient and loss of a record turn, both clipped."""
    return _trained(_record(2), batching=batching.Full(), monitor=0.5)


@audited
def private_training_bins() -> Case:
    """A record comes, and one of two steps sees it, each with probability 1/2."""
    options = {"relation": ADD_OR_REMOVE_ONE, "is_gaussian": False, "delta": 0.01}
    case = _trained(_record(4), batching=batching.BallsInBins(2), **options)
    return dataclasses.replace(case, neighbor=jnp.zeros_like(case.data))


@audited
def private_training_recipe() -> Case:
    """All is left out that can be: batches, estimator, optimizer."""
    left_out = {"estimator": None, "optimizer": None}
    return _trained(_record(4), delta=0.01, is_gaussian=False, **left_out)


@audited
def private_training_correlated() -> Case:
    """Both steps see the record, under correlated noise."""
    strategy = BandedToeplitz.square_root(2, 2)
    return _trained(_record(2), batching=batching.Full(), noise=strategy)


def _record(num_samples: int) -> jax.Array:
    """Returns zeros and a last record that is far out."""
    return jnp.zeros((num_samples, 2)).at[-1].set(jnp.array(_FAR))


def _sampled(draws: batching.Batching, **options) -> Case:
    """Of four records the far one is drawn by chance; the claim is at 0.01."""
    return _descended(
        _record(4), delta=0.01, is_gaussian=False, batching=draws, **options
    )


def _descended(
    data: PyTree,
    neighbor: PyTree | None = None,
    *,
    epsilon: float = 4.0,
    delta: float = 1e-5,
    is_gaussian: bool = True,
    **options,
) -> Case:
    """Two steps along gradients that are the samples; the last one turns round."""
    settings = {"estimator": Clipping(1.0), "learning_rate": 1.0} | options
    settings |= {"epsilon": epsilon, "delta": delta, "num_steps": 2}
    neighbor = last_turned(data) if neighbor is None else neighbor
    start = jnp.zeros(jax.tree.leaves(data)[0].shape[-1])

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_gradient_descent(linear, start, data, key=key, **settings)

    return solved(solve, data, neighbor, is_gaussian=is_gaussian)


def _trained(
    data: jax.Array, *, delta: float = 1e-5, is_gaussian: bool = True, **options
) -> Case:
    """Two steps, of which all parameters and metrics are read."""
    settings: dict[str, Any] = {"estimator": Clipping(1.0), "optimizer": optax.sgd(1.0)}
    settings |= {"num_samples": len(data), "num_steps": 2, **options}
    run = solvers.PrivateTraining(
        lambda params, example: linear(params + 1, example),  # its loss is not zero
        epsilon=4.0,
        delta=delta,
        **settings,
    )

    def release(key: Key, data: jax.Array) -> PyTree:
        state, shown = run.init(jnp.zeros(2), key), []
        for _ in range(2):
            state, metrics = run.step(state, data)
            shown.append((state.params, metrics))
        return shown

    return Case(release, data, -data, run.privacy, is_gaussian=is_gaussian)
