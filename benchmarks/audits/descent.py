"""Gradient descent and training runs under attack, with every batching.

A record is the gradient with the largest influence, and turns round: losses are linear.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import UnsupportedDpEvent

from benchmarks.audits.case import Build, Case, last_turned, linear, solved
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


def _descent_group() -> Case:
    """Two records turn, which may enter each step, with probability 1/2 each."""
    draws, data, delta = batching.Poisson(2.0, capacity=4), _record(4), 0.01
    pair = data.at[0].set(data[-1]), data.at[jnp.array([0, -1])].set(-data[-1])
    options = {"epsilon": 1.5, "delta": delta, "batching": draws}
    case = _descended(*pair, is_gaussian=False, **options)
    step = accounting.noise_multiplier(1.5, delta, draws.sampling(4, 2))
    epsilon = accounting.noise_multiplier_to_epsilon(
        step, delta, draws.sampling(4, 2, group_size=2)
    )
    claim = accounting.PrivacyGuarantee.of(
        epsilon, delta, dp_event=UnsupportedDpEvent(), unit="group of up to 2 records"
    )
    return dataclasses.replace(case, privacy=claim)


def _descent_users() -> Case:
    """A user's one record turns round, and more records come."""
    ids = jnp.array([0, 1, 5, -1])
    samples = jnp.array([[0.0, 0.0], _FAR, [1.0, 1.0], [9.0, 9.0]])

    def grouped(samples: jax.Array, ids: jax.Array) -> PyTree:
        return by_user(samples, ids, num_users=2, records_per_user=3)

    turned = samples.at[1:].set(-jnp.asarray(_FAR))
    return _descended(grouped(samples, ids), grouped(turned, ids.at[2:].set(1)))


def _localized_sco() -> Case:
    """All steps of the last phase see the record, and their noise adds up."""
    given = {"diameter": 100.0, "smoothness": 0.01, "num_steps": 2, **_BOUNDED}

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_localized_sco(linear, jnp.zeros(2), data, key=key, **given)

    return solved(solve, _record(80), -_record(80), is_gaussian=True)


def _one_pass_sco() -> Case:
    """The first step of the one phase sees the record, and all iterates after it."""
    loss, given = losses.huber(10.0), {"diameter": 1.0, **_BOUNDED}

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_one_pass_sco(loss, jnp.zeros(2), data, key=key, **given)

    features = jnp.zeros((60, 2)).at[0].set(jnp.array([0.6, 0.8]))
    targets = jnp.zeros(60).at[0].set(1e30)
    return solved(solve, (features, targets), (features, -targets), is_gaussian=True)


def _record(num_samples: int) -> jax.Array:
    """Returns zeros and a last record that is far out."""
    return jnp.zeros((num_samples, 2)).at[-1].set(jnp.array(_FAR))


def _sampled(draws: Any, **options) -> Case:
    """Of four records the far one is drawn by chance; the claim is at 0.01."""
    return _descended(
        _record(4), delta=0.01, is_gaussian=False, batching=draws, **options
    )


def _descended(
    data, neighbor=None, *, epsilon=4.0, delta=1e-5, is_gaussian=True, **options
) -> Case:
    """Two steps along gradients that are the samples; the last one turns round."""
    settings = {"estimator": Clipping(1.0), "learning_rate": 1.0} | options
    settings |= {"epsilon": epsilon, "delta": delta, "num_steps": 2}
    neighbor = last_turned(data) if neighbor is None else neighbor
    start = jnp.zeros(jax.tree.leaves(data)[0].shape[-1])

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_gradient_descent(linear, start, data, key=key, **settings)

    return solved(solve, data, neighbor, is_gaussian=is_gaussian)


def _trained(data, delta=1e-5, *, is_gaussian=True, **options) -> Case:
    """Two steps, of which all parameters and metrics are read."""
    settings: dict[str, Any] = {"estimator": Clipping(1.0), "optimizer": optax.sgd(1.0)}
    settings |= {"num_samples": len(data), "num_steps": 2, **options}
    loss_fn = lambda params, example: linear(params + 1, example)  # noqa: E731 -- not 0
    run = solvers.PrivateTraining(loss_fn, epsilon=4.0, delta=delta, **settings)

    def release(key: Key, data: jax.Array) -> PyTree:
        state, shown = run.init(jnp.zeros(2), key), []
        for _ in range(2):
            state, metrics = run.step(state, data)
            shown.append((state.params, metrics))
        return shown

    return Case(release, data, -data, run.privacy, is_gaussian=is_gaussian)


CASES: dict[str, Build] = {
    # Both steps see the record, and their noise adds up.
    "dp_gradient_descent": lambda: _descended(_record(2)),
    # The last step sees the record, and is the longest.
    "dp_gradient_descent_disjoint": lambda: _descended(
        _record(2), batching=batching.Disjoint(), learning_rate=_longest_last
    ),
    # Both steps see the record with probability 1/4 each.
    "dp_gradient_descent_poisson": lambda: _sampled(batching.Poisson(1.0)),
    # Both steps see the record with probability 3/4 each.
    "dp_gradient_descent_without_replacement": lambda: _sampled(
        batching.WithoutReplacement(3)
    ),
    # Both steps see the median cross the clamp.
    "dp_gradient_descent_trimmed": lambda: _descended(
        jnp.array(np.outer([-9.0, 9.0, 9.0], np.ones(8)), "float32"),
        estimator=TrimmedMean(0.34, lower=-1.0, upper=1.0),
        **{"epsilon": 2.0, "delta": 0.05, "is_gaussian": False},
    ),
    # The longest step sees the record with probability 1/2.
    "dp_gradient_descent_cyclic": lambda: _sampled(
        batching.CyclicPoisson(1.0, cycle_length=2), learning_rate=_longest_last
    ),
    # One of two steps sees the record, each with probability 1/2.
    "dp_gradient_descent_bins": lambda: _sampled(batching.BallsInBins(2)),
    "dp_gradient_descent_group": _descent_group,
    "dp_gradient_descent_users": _descent_users,
    "dp_localized_sco": _localized_sco,
    "dp_one_pass_sco": _one_pass_sco,
    # Both steps see the record, and their noise adds up.
    "private_training": lambda: _trained(_record(2), batching=batching.Full()),
    # Gradient and loss of a record turn, both clipped.
    "private_training_monitor": lambda: _trained(
        _record(2), batching=batching.Full(), monitor=0.5
    ),
    # A record comes, and one of two steps sees it, each with probability 1/2.
    "private_training_bins": lambda: dataclasses.replace(
        _trained(
            *(_record(4), 0.01),
            batching=batching.BallsInBins(2),
            relation=ADD_OR_REMOVE_ONE,
            is_gaussian=False,
        ),
        neighbor=jnp.zeros((4, 2)),
    ),
    # All is left out that can be: batches, estimator, optimizer.
    "private_training_recipe": lambda: _trained(
        _record(4), delta=0.01, is_gaussian=False, estimator=None, optimizer=None
    ),
    # Both steps see the record, under correlated noise.
    "private_training_correlated": lambda: _trained(
        _record(2), batching=batching.Full(), noise=BandedToeplitz.square_root(2, 2)
    ),
}
