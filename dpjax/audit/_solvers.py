"""The solvers' claims, each as the solver states it, on few records and few steps.

A record has all the influence that it can have: the loss is linear in the parameters,
so that an example is its gradient. Each case says how much of its claim its releases
show; for Gaussian noise and zCDP the words of `_transforms` hold.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import batching, estimators, losses, parties, solvers
from dpjax._types import Key, PyTree
from dpjax.audit import _batched_solvers, _choosing_solvers, _linear_models
from dpjax.audit._choosing_solvers import linear, solved
from dpjax.audit._lower_bound import Case
from dpjax.estimators import Clipping, Winsorization
from dpjax.solvers import Solution

_FAR = [[0.0, 0.0], [3e9, 4e9]]


def dp_mean() -> Case:
    """With the default estimator an infinite sample changes sign. Shows 3.6 of 4."""

    def solve(key: Key, samples: jax.Array) -> Solution:
        return solvers.dp_mean(samples, key=key, epsilon=4.0, delta=1e-5)

    samples = jnp.array([0.0, jnp.inf])
    return solved("dp_mean", solve, samples, -samples, is_gaussian=True)


def dp_mean_trimmed() -> Case:
    """Sixteen coordinates cross the clamp. Shows 1.2 of 2, through zCDP."""
    estimator = estimators.TrimmedMean(0.34, lower=-1.0, upper=1.0)

    def solve(key: Key, samples: jax.Array) -> Solution:
        return solvers.dp_mean(
            samples, key=key, epsilon=2.0, delta=0.05, estimator=estimator
        )

    def statistic(mean: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(mean + 1) - jnp.abs(mean - 1))  # as of Laplace noise

    samples = jnp.outer(jnp.array([-9.0, 9.0, 9.0]), jnp.ones(16))
    return solved(
        "dp_mean_trimmed",
        solve,
        samples,
        samples.at[-1].multiply(-1),
        statistic=statistic,
    )


def dp_gradient_descent() -> Case:
    """Both steps see the record, and their noise adds up. Shows 3.6 of 4."""
    return _descended(
        "dp_gradient_descent",
        _FAR,
        is_gaussian=True,
        epsilon=4.0,
        delta=1e-5,
    )


def dp_gradient_descent_disjoint() -> Case:
    """The last step sees the record, and is the longest. Shows 3.6 of 4."""
    return _descended(
        "dp_gradient_descent_disjoint",
        _FAR,
        is_gaussian=True,
        epsilon=4.0,
        delta=1e-5,
        batching=batching.Disjoint(),
        learning_rate=lambda step: 0.01 + 0.99 * step.astype(jnp.float32),
    )


def dp_gradient_descent_poisson() -> Case:
    """Both steps see the record with probability 1/4 each. Shows 2.1 of 4."""
    return _descended(
        "dp_gradient_descent_poisson",
        [[0.0, 0.0]] * 2 + _FAR,
        epsilon=4.0,
        delta=0.01,
        batching=batching.Poisson(1.0),
    )


def dp_gradient_descent_without_replacement() -> Case:
    """Both steps see the record with probability 3/4 each. Shows 2.1 of 4."""
    return _descended(
        "dp_gradient_descent_without_replacement",
        [[0.0, 0.0]] * 2 + _FAR,
        epsilon=4.0,
        delta=0.01,
        batching=batching.WithoutReplacement(3),
    )


def dp_gradient_descent_trimmed() -> Case:
    """Both steps see the median cross the clamp. Shows 0.7 of 2, through zCDP."""
    samples = np.outer([-9.0, 9.0, 9.0], np.ones(8))
    return _descended(
        "dp_gradient_descent_trimmed",
        samples,
        epsilon=2.0,
        delta=0.05,
        estimator=estimators.TrimmedMean(0.34, lower=-1.0, upper=1.0),
    )


def dp_iterative_hard_thresholding() -> Case:
    """The two entries of the parameters change places. Shows 1.1 of 2, through zCDP."""
    name = "dp_iterative_hard_thresholding"
    return _peeled(name, epsilon=2.0, delta=0.05)


def dp_iterative_hard_thresholding_pure() -> Case:
    """The two entries of the parameters change places. Shows 1.2 of 2."""
    name = "dp_iterative_hard_thresholding_pure"
    return _peeled(name, epsilon=2.0, delta=0.0)


def dp_sparse_linear_regression() -> Case:
    """Of two entries, the one that is not zero becomes zero. Shows 1.1 of 2."""
    return _regressed("dp_sparse_linear_regression", learning_rate=1.0)


def dp_sparse_linear_regression_scaled() -> Case:
    """The same, with a step size that is chosen privately. Shows 1.1 of 2."""
    return _regressed("dp_sparse_linear_regression_scaled", learning_rate=None)


def dp_objective_perturbation() -> Case:
    """The only label turns round, where the loss has its full slope. Shows 3.0 of 4."""

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_objective_perturbation(
            *data,
            key=key,
            epsilon=4.0,
            delta=0.05,
            regularization=1000.0,
            loss=losses.MarginLoss.smoothed_hinge(),
        )

    features, labels = jnp.ones((1, 1)), jnp.ones(1)
    return solved(
        "dp_objective_perturbation", solve, (features, labels), (features, -labels)
    )


def dp_sample_and_aggregate() -> Case:
    """The first result crosses the ball, and with it the centre. Shows 3.0 of 4.

    The rest of the claim is for a scale that may differ, which here it does not.
    """

    def solve(key: Key, samples: jax.Array) -> Solution:
        return solvers.dp_sample_and_aggregate(
            jnp.mean,
            samples,
            key=key,
            epsilon=4.0,
            delta=0.1,
            num_subsets=201,
            diameter=1.0,
        )

    samples = jnp.where(jnp.arange(201) < 101, -0.5, 0.5)
    return solved("dp_sample_and_aggregate", solve, samples, samples.at[0].set(0.5))


def dp_multiparty_gradient_descent() -> Case:
    """Both iterates of two parties with a record each, one of which turns round.

    They tell what the parties' two sums tell, and the case is for those who know no
    party's noise. Shows 2.1 of 4: a run takes 50 ms, so 2,000 releases.
    """

    def solve(key: Key, data: jax.Array, shown: solvers.Execution) -> Solution:
        def party_fn(transport: parties.Transport) -> Solution:
            party = transport.party
            return solvers.dp_multiparty_gradient_descent(
                linear,
                jnp.zeros(1),
                data[party],
                secure_sum=_secure_sum(transport, key),
                epsilon=4.0,
                delta=1e-5,
                estimator=Clipping(1.0),
                learning_rate=1.0,
                num_steps=2,
                execution=shown if party == 0 else solvers.Execution(),
            )

        return parties.run_parties(party_fn, 2)[0]

    def release(key: Key, data: jax.Array) -> list[jax.Array]:
        iterates = []
        shown = solvers.Execution(callback=lambda _, params: iterates.append(params))
        solve(key, data, shown)
        return iterates

    data = jnp.ones((2, 1, 1))  # party, record, feature
    return Case(
        name="dp_multiparty_gradient_descent",
        release=release,
        data=data,
        neighbor=data.at[-1].multiply(-1),
        privacy=solve(jax.random.key(0), data, solvers.Execution()).privacy,
        num_releases=2_000,
        is_gaussian=True,
        vectorize=False,
    )


def dp_multiparty_objective_perturbation() -> Case:
    """One of two parties' labels turns round, where the loss has its full slope.

    Shows 1.5 of 4: a run takes 80 ms, so 2,000 releases. Released are the parameters
    alone: the transcript is not private, and the solver says so.
    """

    def solve(key: Key, data: PyTree) -> Solution:
        features, labels = data

        def party_fn(transport: parties.Transport) -> Solution:
            party = transport.party
            return solvers.dp_multiparty_objective_perturbation(
                features[party],
                labels[party],
                secure_sum=_secure_sum(transport, key),
                epsilon=4.0,
                delta=0.05,
                regularization=1000.0,
                loss=losses.MarginLoss.smoothed_hinge(),
            )

        return parties.run_parties(party_fn, 2)[0]

    features, labels = jnp.ones((2, 1, 1)), jnp.ones((2, 1))
    data = (features, labels)
    return Case(
        name="dp_multiparty_objective_perturbation",
        release=lambda key, data: solve(key, data).params,
        data=data,
        neighbor=(features, labels.at[-1].multiply(-1)),
        privacy=solve(jax.random.key(0), data).privacy,
        num_releases=2_000,
        vectorize=False,
    )


def _secure_sum(transport: parties.Transport, key: Key) -> parties.SecureSum:
    """Returns sums with the bytes that the key and the party's number decide."""
    words = np.asarray(jax.random.key_data(key))
    seed = np.append(words, np.uint32(transport.party))
    return parties.SecureSum(
        transport,
        max_colluding=0,
        test_only_random_bytes=np.random.default_rng(seed).bytes,
    )


def _descended(name: str, samples, *, is_gaussian=False, **options) -> Case:
    """Two steps along gradients that are the samples; the last one turns round."""
    settings = {"estimator": Clipping(1.0), "learning_rate": 1.0} | options

    def solve(key: Key, samples: jax.Array) -> Solution:
        return solvers.dp_gradient_descent(
            linear,
            jnp.zeros(samples.shape[1:]),
            samples,
            key=key,
            num_steps=2,
            **settings,
        )

    data = jnp.array(samples, "float32")
    return solved(name, solve, data, data.at[-1].multiply(-1), is_gaussian=is_gaussian)


def _peeled(name: str, *, epsilon: float, delta: float) -> Case:
    def solve(key: Key, samples: jax.Array) -> Solution:
        return solvers.dp_iterative_hard_thresholding(
            linear,
            jnp.ones(2),
            samples,
            key=key,
            epsilon=epsilon,
            delta=delta,
            sparsity=1,
            estimator=Winsorization(1.0),
            learning_rate=1.0,
            num_steps=1,
        )

    samples = jnp.array([[1.0, -1.0]])
    return solved(name, solve, samples, -samples)


def _regressed(name: str, *, learning_rate: float | None) -> Case:
    """From zero, a step along the mean of (1, 1) and (1, -1), or (-1, 1)."""

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_sparse_linear_regression(
            *data,
            key=key,
            epsilon=2.0,
            delta=0.05,
            sparsity=1,
            threshold=1.0,
            learning_rate=learning_rate,
            num_steps=1,
            radius=100.0,
        )

    features, targets = jnp.array([[1.0, 1.0], [1.0, -1.0]]), jnp.ones(2)
    neighbor = features.at[-1].multiply(-1)
    return solved(name, solve, (features, targets), (neighbor, targets))


BUILDERS: dict[str, Callable[[], Case]] = {
    build.__name__: build
    for build in (
        dp_mean,
        dp_mean_trimmed,
        dp_gradient_descent,
        dp_gradient_descent_disjoint,
        dp_gradient_descent_poisson,
        dp_gradient_descent_without_replacement,
        dp_gradient_descent_trimmed,
        dp_iterative_hard_thresholding,
        dp_iterative_hard_thresholding_pure,
        dp_sparse_linear_regression,
        dp_sparse_linear_regression_scaled,
        dp_objective_perturbation,
        dp_sample_and_aggregate,
        dp_multiparty_gradient_descent,
        dp_multiparty_objective_perturbation,
    )
} | (_linear_models.BUILDERS | _batched_solvers.BUILDERS | _choosing_solvers.BUILDERS)
