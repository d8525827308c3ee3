"""The exact Gaussian: its delta integral in 50 digits, inverse pairs."""

import mpmath
import pytest

from dpjax.accounting import gaussian_epsilon, gaussian_stddev

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
def test_stddev_is_safe_and_tight(epsilon):
    for delta in DELTAS:
        stddev = gaussian_stddev(epsilon, delta, sensitivity=1.0)
        assert exact_delta(stddev, epsilon) <= delta
        if epsilon >= 1e-4:  # The documented slack is 1e-9, float64's is below 1e-8.
            assert exact_delta(stddev * (1 - 1e-8), epsilon) > delta


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
@pytest.mark.parametrize("stddev", [1e-2, 0.5, 3.0, 1e3, 1e6])
def test_epsilon_is_safe(stddev, delta):
    epsilon = gaussian_epsilon(stddev, delta, sensitivity=1.0)
    assert exact_delta(stddev, epsilon) <= delta * (1 + 1e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_composition_and_units_are_exact(epsilon):
    one = gaussian_stddev(epsilon, 1e-5, sensitivity=1.0)
    many = gaussian_stddev(epsilon, 1e-5, sensitivity=0.5, num_releases=64)
    assert many == pytest.approx(4 * one, rel=1e-12)
    spent = gaussian_epsilon(many, 1e-5, sensitivity=0.5, num_releases=64)
    assert spent == pytest.approx(epsilon, rel=1e-6)


def test_limits():
    assert gaussian_stddev(1.0, 0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(0.0, 0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(1e300, 1e-300, sensitivity=1.0) == 0.0
