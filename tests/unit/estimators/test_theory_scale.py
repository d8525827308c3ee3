"""Thresholds from moment bounds: minima of the bounds that the docstrings state."""

import math
from functools import partial

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from scipy import optimize

from dpjax.estimators import (
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from tests.unit.estimators.test_smoothed_truncation import supremum


@pytest.mark.parametrize("order", [1.3, 2.0])
@pytest.mark.parametrize("estimator_type", [Truncation, Winsorization])
def test_bias_factor_is_the_worst_law(estimator_type, order):
    # The largest E|x - psi(x)| of all laws with E|x|^order <= u, on a grid of atoms: a
    # law that keeps 1 - p at zero and puts p = u / x^order at x is the worst.
    u, threshold = 3.0, 2.0
    x = threshold * np.geomspace(1, 1e3, 200_001)
    loss = x if estimator_type is Truncation else x - threshold
    bound = estimator_type.bias_factor(order - 1) * u / threshold ** (order - 1)
    np.testing.assert_allclose(bound, (u / x**order * loss).max(), rtol=1e-4)


def threshold_bias(estimator, threshold, u, order, log_term):
    v = order - 1
    factor = 1.0 if isinstance(estimator, Truncation) else v**v / (1 + v) ** (1 + v)
    return factor * u / threshold**v, 2 / 3 * log_term, 1.0


def smoothed_bias(estimator, scale, u, order, log_term):
    b = estimator.beta
    return u * (1 + 1 / b) / (2 * scale), b / 2 + log_term, supremum(b)


CASES = [
    (partial(kind.for_moment, moment_order=order), order, threshold_bias)
    for kind in (Truncation, Winsorization)
    for order in (1.3, 2.0)
]
CASES += [
    (partial(SmoothedTruncation.for_moment, beta=beta), 2.0, smoothed_bias)
    for beta in (None, 1.0, 4.0)
]


@pytest.mark.parametrize(("n", "d", "num_steps"), [(50_000, 1, 1), (9_000, 20, 30)])
@pytest.mark.parametrize(("for_moment", "order", "terms"), CASES)
def test_a_limit_minimises_the_error_bound(for_moment, order, terms, n, d, num_steps):
    u, epsilon, delta, xi = 3.0, 0.5, 1e-6, 0.05
    sizes = {"num_samples": n, "num_coordinates": d, "num_steps": num_steps}
    budget = {"epsilon": epsilon, "delta": delta, "failure_prob": xi}
    estimator = for_moment(u, **sizes, **budget)
    log_term = math.log(2 * d * num_steps / xi)
    kappa = gaussian_mechanism.get_sigma_gaussian(epsilon, delta) * num_steps**0.5

    def bound(log_limit):
        limit = math.exp(log_limit)
        bias, concentration, largest = terms(estimator, limit, u, order, log_term)
        stddev = kappa * 2 * largest * limit * d**0.5 / n
        return bias + limit / n * concentration + stddev * math.sqrt(2 * log_term)

    limit = getattr(estimator, "scale", None) or estimator.threshold
    best = optimize.minimize_scalar(bound, bounds=(-10, 30), method="bounded")
    np.testing.assert_allclose(bound(math.log(limit)), best.fun, rtol=1e-8)
    np.testing.assert_allclose(math.log(limit), best.x, atol=2e-3)
    if terms is smoothed_bias:
        b = for_moment.keywords["beta"]
        assert estimator.beta == (2 * math.log(1 / xi) if b is None else b)


def test_number_of_groups_for_a_failure_probability():
    estimator = MedianOfMeans.for_failure_prob(
        Truncation(1.0), num_coordinates=1000, failure_prob=0.05
    )
    assert estimator.num_groups == math.ceil(4 * math.log(2 * 1000 / 0.05))
