"""Thresholds from moment bounds: minima of the bounds that the docstrings state."""

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from scipy import optimize

from benchmarks.figures import printed
from dpjax.estimators import (
    MedianOfMeans,
    Truncation,
    Winsorization,
)

SETTING = dict(num_samples=10_000, epsilon=1.0, delta=1e-5)


def worst_bias(estimator_type, threshold, u, order):
    """The largest E|x - psi(x)| of all laws with E|x|^order <= u, on a grid of atoms.

    A law that keeps 1 - p at zero and puts p = u / x^order at x is the worst.
    """
    x = threshold * np.geomspace(1, 1e3, 200_001)
    loss = x if estimator_type is Truncation else x - threshold
    return (u / x**order * loss).max()


@pytest.mark.parametrize("order", [1.3, 2.0])
@pytest.mark.parametrize("estimator_type", [Truncation, Winsorization])
def test_bias_factor_is_the_worst_law(estimator_type, order):
    u, threshold = 3.0, 2.0
    factor = estimator_type.bias_factor(order - 1)
    np.testing.assert_allclose(
        factor * u / threshold ** (order - 1),
        worst_bias(estimator_type, threshold, u, order),
        rtol=1e-4,
    )


@pytest.mark.parametrize("order", [1.3, 2.0])
@pytest.mark.parametrize(("d", "num_steps"), [(1, 1), (20, 30)])
@pytest.mark.parametrize("estimator_type", [Truncation, Winsorization])
def test_threshold_minimises_the_error_bound(estimator_type, d, num_steps, order):
    u, n, epsilon, delta, xi = 3.0, 50_000, 0.5, 1e-6, 0.05
    estimator = estimator_type.for_moment(
        u,
        moment_order=order,
        num_samples=n,
        num_coordinates=d,
        num_steps=num_steps,
        epsilon=epsilon,
        delta=delta,
        failure_prob=xi,
    )
    log_term = math.log(2 * d * num_steps / xi)
    kappa = gaussian_mechanism.get_sigma_gaussian(epsilon, delta) * num_steps**0.5
    v = order - 1
    factor = {Truncation: 1.0, Winsorization: v**v / (1 + v) ** (1 + v)}[estimator_type]

    def bound(log_threshold):
        threshold = math.exp(log_threshold)
        noise = kappa * 2 * threshold * d**0.5 / n * math.sqrt(2 * log_term)
        return factor * u / threshold**v + threshold * 2 / 3 * log_term / n + noise

    best = optimize.minimize_scalar(bound, bounds=(-10, 30), method="bounded")
    np.testing.assert_allclose(
        bound(math.log(estimator.threshold)), best.fun, rtol=1e-8
    )
    np.testing.assert_allclose(math.log(estimator.threshold), best.x, atol=2e-3)


def test_printed_thresholds():
    one = printed.threshold(2.0, moment_order=2.0, **SETTING)
    expected = 2.0 * 10_000 / math.log(100) / math.sqrt(math.log(1.25e5))
    np.testing.assert_allclose(one, math.sqrt(expected))
    sizes = {"moment_order": 1.5, "num_coordinates": 9, "num_steps": 16}
    many = printed.threshold(2.0, **sizes, **SETTING)
    np.testing.assert_allclose(many, (2e4 / (27 * 4)) ** (1 / 1.5))


def test_number_of_groups_for_a_failure_probability():
    estimator = MedianOfMeans.for_failure_prob(
        Truncation(1.0), num_coordinates=1000, failure_prob=0.05
    )
    assert estimator.num_groups == math.ceil(4 * math.log(2 * 1000 / 0.05))
