"""The solvers' claims, each as the solver states it, on few records and few steps.

The loss is linear in the parameters, so that a record is its gradient.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.audits.case import Build, Case, last_turned, linear, of, solved
from benchmarks.audits.transcripts import transcribed
from dpjax import constraints, estimators, losses, parties, solvers
from dpjax._types import Key, PyTree
from dpjax.estimators import Clipping, Winsorization
from dpjax.solvers import Solution
from dpjax.solvers.statistics._group_means import group_statistics
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._quantile import EDGES_SHARE, noisy_counts, private_edges
from dpjax.tables.describe import _release as describing

_FAR, _FARTHER = 1e9, 1e12
_SMALL = {"epsilon": 4.0, "delta": 1e-5}
_OBJECTIVE = {
    **{"epsilon": 4.0, "delta": 0.05, "regularization": 1000.0},
    "loss": losses.MarginLoss.smoothed_hinge(),
}


def _mean(epsilon: float, num_releases: int) -> Case:
    """One of the numbers changes sign and size, and is far beyond all others."""
    solve = of(solvers.dp_mean, epsilon=epsilon, delta=1e-5)
    data = jnp.linspace(-1.0, 1.0, 100).at[0].set(-_FAR)
    pair = data, data.at[0].set(_FARTHER)
    return transcribed(solve, *pair, num_releases=num_releases)


def _described(epsilon: float, num_releases: int) -> Case:
    """What `describe` releases of a column of numbers in two groups.

    A record changes its group, and is far beyond all others.
    """
    multiplier, privacy = one_gaussian(epsilon, 1e-5, 100)
    share, num_bins = describing._HISTOGRAM, describing._NUM_BINS
    of_means, of_bins = (multiplier / math.sqrt(x) for x in (1 - share, share))

    def solve(key: Key, data: PyTree) -> Solution:
        (values, groups), keys = data, jax.random.split(key, 3)
        args = 2, of_means, tuple(describing._QUANTILES.values()), None
        params, errors, _ = group_statistics(keys[0], values, groups, *args)
        edges = private_edges(keys[1], values, of_bins)
        cells = jnp.searchsorted(edges[1:-1], values) + num_bins * groups
        counts = jnp.zeros(2 * num_bins, "int32").at[cells].add(1)
        of_counts = of_bins / math.sqrt(1 - EDGES_SHARE)
        noisy = noisy_counts(keys[2], counts, of_counts, len(values))[0]
        return Solution((params, errors, noisy), privacy, {})

    pair = _grouped(-_FAR, 0), _grouped(_FARTHER, 1)
    return transcribed(solve, *pair, num_releases=num_releases)


def _grouped(value: float, group: int) -> tuple[jax.Array, jax.Array]:
    values, groups = jnp.linspace(-1.0, 1.0, 100), jnp.arange(100) % 2
    return values.at[0].set(value), groups.at[0].set(group)


def _dp_mean_trimmed() -> Case:
    """Sixteen coordinates cross the clamp."""
    estimator = estimators.TrimmedMean(0.34, lower=-1.0, upper=1.0)
    solve = of(solvers.dp_mean, epsilon=2.0, delta=0.05, estimator=estimator)
    samples = jnp.outer(jnp.array([-9.0, 9.0, 9.0]), jnp.ones(16))
    return solved(
        *(solve, samples, last_turned(samples)),
        statistic=lambda x: jnp.sum(jnp.abs(x + 1) - jnp.abs(x - 1)),  # of Laplace
    )


def _dp_multiparty_gradient_descent() -> Case:
    """Both iterates of two parties with a record each, one of which turns round.

    For those who know no party's noise. A run takes 50 ms, so 2,000 releases.
    """
    options = {"epsilon": 4.0, "delta": 1e-5, "learning_rate": 1.0, "num_steps": 2}
    options["estimator"] = Clipping(1.0)
    iterates = []

    def one(party: int, data: PyTree, **sums: Any) -> Solution:
        show = lambda _, params: iterates.append(params)  # noqa: E731
        shown = solvers.Execution(callback=show if party == 0 else None)
        args = linear, jnp.zeros(1), data[party]
        solve = solvers.dp_multiparty_gradient_descent
        return solve(*args, execution=shown, **sums, **options)

    def release(key: Key, data: PyTree) -> list[jax.Array]:
        iterates.clear()
        _among_two(one, key, data)
        return list(iterates)

    data = jnp.ones((2, 1, 1))  # party, record, feature
    privacy = _among_two(one, jax.random.key(0), data).privacy
    limits = {"num_releases": 2_000, "is_gaussian": True, "vectorize": False}
    return Case(release, data, last_turned(data), privacy, **limits)


def _dp_multiparty_objective_perturbation() -> Case:
    """One of two parties' labels turns round, where the loss has its full slope.

    Released are the parameters alone. A run takes 80 ms, so 2,000 releases.
    """

    def one(party: int, data: PyTree, **sums: Any) -> Solution:
        solve = solvers.dp_multiparty_objective_perturbation
        return solve(*(x[party] for x in data), **sums, **_OBJECTIVE)

    features, labels = jnp.ones((2, 1, 1)), jnp.ones((2, 1))
    return Case(
        lambda key, data: _among_two(one, key, data).params,
        *((features, labels), (features, last_turned(labels))),
        _among_two(one, jax.random.key(0), (features, labels)).privacy,
        num_releases=2_000,
        vectorize=False,
    )


def _among_two(one: Callable[..., Solution], key: Key, data: PyTree) -> Solution:
    """Runs two parties, with the random bytes that key and party decide."""
    words = np.asarray(jax.random.key_data(key))

    def party_fn(transport: Any) -> Solution:
        seed = np.append(words, np.uint32(transport.party))
        options = {"test_only_random_bytes": np.random.default_rng(seed).bytes}
        sums = parties.SecureSum(transport, max_colluding=0, **options)
        return one(transport.party, data, secure_sum=sums)

    return parties.run_parties(party_fn, 2)[0]


def _peeled(*, epsilon: float, delta: float) -> Case:
    options = {"epsilon": epsilon, "delta": delta, "sparsity": 1, "num_steps": 1}
    options |= {"estimator": Winsorization(1.0), "learning_rate": 1.0}
    solver = solvers.dp_iterative_hard_thresholding
    samples = jnp.array([[1.0, -1.0]])
    return solved(of(solver, linear, jnp.ones(2), **options), samples, -samples)


def _regressed(*, learning_rate: float | None) -> Case:
    """From zero, a step along the mean of (1, 1) and (1, -1), or (-1, 1)."""
    options = {"epsilon": 2.0, "delta": 0.05, "sparsity": 1, "threshold": 1.0}
    options |= {"learning_rate": learning_rate, "num_steps": 1, "radius": 100.0}
    solve = of(solvers.dp_sparse_linear_regression, **options)
    features, targets = jnp.array([[1.0, 1.0], [1.0, -1.0]]), jnp.ones(2)
    return solved(solve, (features, targets), (last_turned(features), targets))


# -- Choices: a record decides which of two candidates that tie is ahead ---------------


def _dp_frank_wolfe_composed() -> Case:
    """The better of two vertices becomes the worse one in all eight steps."""

    def rate(step: jax.Array) -> jax.Array:
        return 1 / (1 + step.astype("float32"))

    options = {"epsilon": 2.0, "delta": 0.05, "num_steps": 8}
    return _chosen(9, num_against=4, learning_rate=rate, **options)


def _dp_l1_regression() -> Case:
    """One of two candidates that tie falls behind."""
    options = {"epsilon": 2.0, "candidates": jnp.eye(2), "truncation": 1.0}
    # A record fits one candidate and is truncated at the other.
    features, targets = jnp.array([[0.0, 9.0], [9.0, 0.0]]), jnp.zeros(2)
    neighbor = features.at[0].set(features[1]), targets
    solve = of(solvers.dp_l1_regression, **options)
    return solved(solve, (features, targets), neighbor)


def _dp_center_and_scale() -> Case:
    """One record leaves the lowest bin of sizes for the highest of three."""
    solve = of(solvers.dp_center_and_scale, **_SMALL)
    samples = jnp.tile(jnp.array([1.5, -1.5, 3.0, -3.0, 6.0, -6.0]), 40)[:, None]
    return transcribed(solve, samples, samples.at[0].set(-1e6))


def _chosen(num_samples, *, num_steps=2, num_against=0, **options) -> Case:
    """All records but some prefer one vertex of two; the last one turns round."""
    options |= {"constraint": constraints.Simplex(1.0), "num_steps": num_steps}
    options["estimator"] = Winsorization(1.0)
    solve = of(solvers.dp_frank_wolfe, linear, jnp.array([0.5, 0.5]), **options)
    data = jnp.tile(jnp.array([[1.0, -1.0]]), (num_samples, 1))
    data = data.at[:num_against].multiply(-1)
    return solved(solve, data, last_turned(data))


CHOICES: dict[str, Build] = {
    # One of two vertices that tie falls behind in the last step.
    "dp_frank_wolfe": lambda: _chosen(4, epsilon=1.0),
    "dp_frank_wolfe_composed": _dp_frank_wolfe_composed,
    # One of two vertices that tie falls behind.
    "dp_lasso": lambda: solved(
        of(solvers.dp_lasso, epsilon=1.0, delta=0.0, threshold=1.0, num_steps=1),
        *((jnp.ones((2, 1)), jnp.array([9.0, last])) for last in (9.0, -9.0)),
    ),
    "dp_l1_regression": _dp_l1_regression,
    # The smaller of two samples jumps over the other. Half of the budget is for the
    # interval, which so few samples have not.
    "dp_quantile": lambda: solved(
        of(solvers.dp_quantile, epsilon=1.0, edges=jnp.arange(5.0)),
        *(jnp.array([0.5, 1.5]), jnp.array([3.5, 1.5])),
    ),
    "dp_center_and_scale": _dp_center_and_scale,
}
CASES: dict[str, Build] = {
    "dp_mean": lambda: _mean(3.0, 100_000),
    "dp_mean_1": lambda: _mean(1.0, 600_000),
    "dp_mean_8": lambda: _mean(8.0, 40_000),
    # A record far out turns round, and with it its unit vectors in all steps.
    "dp_mean_geometric_median": lambda: transcribed(
        of(solvers.dp_mean, method="geometric_median", **_SMALL),
        *(jnp.zeros((4, 2)).at[-1].set(jnp.array([x, 1.4 * x])) for x in (_FAR, -1e6)),
    ),
    # An infinite sample changes sign.
    "dp_mean_truncated": lambda: solved(
        of(solvers.dp_mean, estimator=estimators.SmoothedTruncation(1.0), **_SMALL),
        *(jnp.array([0.0, x]) for x in (jnp.inf, -jnp.inf)),
        is_gaussian=True,
    ),
    # A record leaves the first bin for the last.
    "dp_histogram": lambda: solved(
        of(solvers.dp_histogram, epsilon=4.0, delta=1e-5, edges=jnp.arange(5.0)),
        *(jnp.array([0.5, 1.5]), jnp.array([3.5, 1.5])),
        is_gaussian=True,
    ),
    # A record changes its group, and is far beyond all others.
    "dp_group_means": lambda: transcribed(
        of(solvers.dp_group_means, num_groups=2, **_SMALL),
        *(_grouped(x, y) for x, y in ((-_FAR, 0), (_FARTHER, 1))),
    ),
    "dp_group_means_described": lambda: _described(3.0, 250_000),
    "dp_group_means_described_1": lambda: _described(1.0, 200_000),
    "dp_group_means_described_8": lambda: _described(8.0, 120_000),
    "dp_mean_trimmed": _dp_mean_trimmed,
    # The two entries of the parameters change places.
    "dp_iterative_hard_thresholding": lambda: _peeled(epsilon=2.0, delta=0.05),
    "dp_iterative_hard_thresholding_pure": lambda: _peeled(epsilon=2.0, delta=0.0),
    # Of two entries, the one that is not zero becomes zero.
    "dp_sparse_linear_regression": lambda: _regressed(learning_rate=1.0),
    # The same, with a step size that is chosen privately.
    "dp_sparse_linear_regression_scaled": lambda: _regressed(learning_rate=None),
    # The only label turns round, where the loss has its full slope.
    "dp_objective_perturbation": lambda: solved(
        of(solvers.dp_objective_perturbation, **_OBJECTIVE),
        *((jnp.ones((1, 1)), jnp.array([label])) for label in (1.0, -1.0)),
    ),
    # The first result crosses the ball, and with it the centre.
    "dp_sample_and_aggregate": lambda: solved(
        of(
            *(solvers.dp_sample_and_aggregate, jnp.mean),
            **{"epsilon": 4.0, "delta": 0.1, "num_subsets": 201, "diameter": 1.0},
        ),
        *(jnp.array([first] + [-0.5] * 100 + [0.5] * 100) for first in (-0.5, 0.5)),
    ),
    "dp_multiparty_gradient_descent": _dp_multiparty_gradient_descent,
    "dp_multiparty_objective_perturbation": _dp_multiparty_objective_perturbation,
}
