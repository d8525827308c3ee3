"""Capacity of padded Poisson batches: its exact tail, and its price in delta."""

import math

import mpmath
import numpy as np
import pytest

from dpjax.accounting._sampled_gaussian import poisson_capacity


def exact_tail(capacity, n, q):
    """Pr[Binomial(n, q) > capacity], summed in 50 digits."""
    with mpmath.workdps(50):
        q = mpmath.mpf(q)
        return mpmath.fsum(
            mpmath.binomial(n, k) * q**k * (1 - q) ** (n - k)
            for k in range(capacity + 1, n + 1)
        )


@pytest.mark.parametrize(("n", "q"), [(1, 0.3), (40, 0.02), (600, 0.1), (600, 0.95)])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_smallest_capacity_within_its_share(n, q, delta):
    steps = 30
    for epsilon in (0.1, 1.0, 20.0):
        capacity = poisson_capacity(n, q, num_steps=steps, epsilon=epsilon, delta=delta)
        factor = (1 + math.exp(epsilon)) * steps
        assert 1 <= capacity <= n
        assert factor * exact_tail(capacity, n, q) <= 1e-3 * delta * (1 + 1e-9)
        if capacity > 1:
            assert factor * exact_tail(capacity - 1, n, q) > 1e-3 * delta


@pytest.mark.parametrize("seed", range(5))
def test_factor_of_the_overflow(seed):
    # Any truncated pair P, Q within tau of an (epsilon, delta~)-DP pair stays within
    # delta~ + (1 + e^epsilon) tau; the extreme pair spends all of it.
    rng = np.random.default_rng(seed)
    epsilon, tau = 0.7, 1e-3

    def hockey_stick(p, q):
        return np.maximum(p - math.exp(epsilon) * q, 0).sum()

    p, q = rng.dirichlet(np.ones(8), size=2)
    delta = hockey_stick(p, q)
    top, low = np.argmax(p / q), np.argmin(p / q)
    move = min(tau, p[low], q[top])
    shift = np.zeros(8)
    shift[[top, low]] = move, -move
    worst = hockey_stick(p + shift, q - shift)
    assert worst <= delta + (1 + math.exp(epsilon)) * move + 1e-12
    assert worst == pytest.approx(delta + (1 + math.exp(epsilon)) * move, rel=0.02)


def test_limits():
    base = {"num_steps": 10, "epsilon": 1.0, "delta": 1e-5}
    assert poisson_capacity(100, 1.0, **base) == 100
    assert poisson_capacity(100, 0.01, **{**base, "delta": 0.0}) == 100
    assert poisson_capacity(100, 0.01, **{**base, "epsilon": math.inf}) == 100
    assert poisson_capacity(100, 0.01, **{**base, "epsilon": 1e4}) == 100
    assert poisson_capacity(10**9, 1e-15, **base) == 1
    assert poisson_capacity(10**9, 1e-6, **base) < 1300
