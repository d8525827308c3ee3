"""The exact Gaussian, and zCDP: an integral, an independent minimization, limits."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax.accounting import (
    epsilon_to_rho,
    gaussian_epsilon,
    gaussian_stddev,
    rho_to_epsilon,
)

EPSILONS = [1e-12, 1e-5, 9.9e-5, 1e-4, 0.01, 1.0, 10.0, 1e3, 1e6]
DELTAS = [1e-50, 1e-10, 1e-5, 0.1, 0.9, 0.999]


def exact_delta(stddev, epsilon):
    """The hockey-stick integral of N(1, s^2) against N(0, s^2), 50 digits."""
    with mpmath.workdps(50):
        s, e = mpmath.mpf(stddev), mpmath.mpf(epsilon)
        upper = mpmath.ncdf(1 / (2 * s) - e * s)
        return upper - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


def test_formula_is_the_integral():
    s, e = 0.7, 1.3

    def excess(x):
        return mpmath.npdf(x, 1, s) - mpmath.exp(e) * mpmath.npdf(x, 0, s)

    crossing = 0.5 + e * s**2
    integral = mpmath.quad(excess, [crossing, 2, 5, 20])
    assert float(exact_delta(s, e)) == pytest.approx(float(integral), rel=1e-10)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_stddev_and_epsilon_are_safe_and_tight(epsilon):
    for delta in DELTAS:
        stddev = gaussian_stddev(epsilon, delta, sensitivity=1.0)
        assert exact_delta(stddev, epsilon) <= delta
        if epsilon >= 1e-4:  # The documented slack is 1e-9, float64's is below 1e-8.
            assert exact_delta(stddev * (1 - 1e-8), epsilon) > delta
        price = gaussian_epsilon(stddev, delta, sensitivity=1.0)
        assert exact_delta(stddev, price) <= delta * (1 + 1e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_composition_and_units_are_exact(epsilon):
    one = gaussian_stddev(epsilon, 1e-5, sensitivity=1.0)
    many = gaussian_stddev(epsilon, 1e-5, sensitivity=0.5, num_releases=64)
    assert many == pytest.approx(4 * one, rel=1e-12)
    spent = gaussian_epsilon(many, 1e-5, sensitivity=0.5, num_releases=64)
    assert spent == pytest.approx(epsilon, rel=1e-6)


RHOS = [1e-9, 1e-4, 0.03, 0.5, 3.0, 100.0]


@pytest.mark.parametrize("rho", RHOS)
def test_tight_is_the_minimum_over_all_orders(rho):
    b = np.exp(np.linspace(-12, 130, 200_001))
    logs = np.log(b) - np.log1p(b)
    for delta in DELTAS[:-1]:
        # The printed form: delta = e^{(a-1)(a rho - eps)} (1 - 1/a)^a / (a - 1).
        grid = (1 + b) * rho + (-math.log(delta) + (1 + b) * logs - np.log(b)) / b
        expected = max(0.0, grid.min())
        tight = rho_to_epsilon(rho, delta)
        assert tight == pytest.approx(expected, rel=1e-6, abs=1e-12)
        usual = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        assert tight < usual
        assert epsilon_to_rho(usual, delta) > rho
        assert rho_to_epsilon(epsilon_to_rho(usual, delta), delta) <= usual
        if 1e-10 <= delta <= 0.1:
            # The same conversion on a coarse grid of orders can only be larger ...
            accountant = RdpAccountant().compose(ZCDpEvent(rho))
            assert tight <= accountant.get_epsilon(delta) + 1e-12
            # ... and a Gaussian release with that rho spends no more than we claim.
            exact = gaussian_epsilon(1 / math.sqrt(2 * rho), delta, sensitivity=1.0)
            assert exact <= tight * (1 + 1e-9)


def test_limits_of_the_gaussian_and_of_zcdp():
    assert gaussian_stddev(1.0, 0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(0.0, 0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(1e300, 1e-300, sensitivity=1.0) == 0.0
    assert rho_to_epsilon(math.inf, 0.1) == math.inf
    assert rho_to_epsilon(1e-30, 0.1) == 0.0
    assert math.isfinite(rho_to_epsilon(1e30, 1e-300))
    assert math.isfinite(epsilon_to_rho(1e-30, 1e-300))
