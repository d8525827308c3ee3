"""Gradient descent on turns, bins, epochs and users, as `_solvers` attacks the others.

A record, or a user, is the gradient with the largest influence, and turns round.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax import batching, solvers
from dpjax._types import Key, PyTree
from dpjax.audit._choosing_solvers import linear, solved
from dpjax.audit._lower_bound import Case
from dpjax.estimators import Clipping
from dpjax.gradients import by_user
from dpjax.solvers import Solution

_FAR = [3e9, 4e9]


def dp_gradient_descent_cyclic() -> Case:
    """The longest step sees the record with probability 1/2. Shows 2.6 of 4."""
    return _descended(
        "dp_gradient_descent_cyclic",
        _record(4),
        _record(4, -1),
        delta=0.01,
        is_gaussian=False,
        batching=batching.CyclicPoisson(1.0, cycle_length=2),
        learning_rate=lambda step: 0.01 + 0.99 * step.astype(jnp.float32),
    )


def dp_gradient_descent_bins() -> Case:
    """One of two steps sees the record, both add noise. Shows 2.4 of 4."""
    return _descended(
        "dp_gradient_descent_bins",
        _record(2),
        _record(2, -1),
        batching=batching.BallsInBins(2),
    )


def dp_gradient_descent_epochs() -> Case:
    """Each step is an epoch, which sees the record once. Shows 3.6 of 4."""
    return _descended(
        "dp_gradient_descent_epochs",
        _record(2),
        _record(2, -1),
        batching=batching.ShuffledEpochs(2),
    )


def dp_gradient_descent_users() -> Case:
    """A user's one record turns round, and more records come. Shows 3.6 of 4."""
    ids = jnp.array([0, 1, 5, -1])
    samples = jnp.array([[0.0, 0.0], _FAR, [1.0, 1.0], [9.0, 9.0]])

    def grouped(samples: jax.Array, ids: jax.Array) -> PyTree:
        return by_user(samples, ids, num_users=2, records_per_user=3)

    turned = samples.at[1:].set(-jnp.asarray(_FAR))
    return _descended(
        "dp_gradient_descent_users",
        grouped(samples, ids),
        grouped(turned, ids.at[2:].set(1)),
    )


def _record(num_samples: int, sign: int = 1) -> jax.Array:
    """Returns zeros and a last record that is far out."""
    return jnp.zeros((num_samples, 2)).at[-1].set(sign * jnp.array(_FAR))


def _descended(
    name: str,
    data: PyTree,
    neighbor: PyTree,
    *,
    delta: float = 1e-5,
    is_gaussian: bool = True,
    **options,
) -> Case:
    """Two steps along gradients that are the samples."""
    settings = {"estimator": Clipping(1.0), "learning_rate": 1.0} | options

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_gradient_descent(
            linear,
            jnp.zeros(2),
            data,
            key=key,
            epsilon=4.0,
            delta=delta,
            num_steps=2,
            **settings,
        )

    return solved(name, solve, data, neighbor, is_gaussian=is_gaussian)


BUILDERS: dict[str, Callable[[], Case]] = {
    build.__name__: build
    for build in (
        dp_gradient_descent_cyclic,
        dp_gradient_descent_bins,
        dp_gradient_descent_epochs,
        dp_gradient_descent_users,
    )
}
