"""zCDP conversions: an independent minimisation, inverse pairs, limits."""

import math

import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax.accounting import epsilon_to_rho, gaussian_epsilon, rho_to_epsilon

RHOS = [1e-9, 1e-4, 0.03, 0.5, 3.0, 100.0]
EPSILONS = [1e-6, 0.01, 0.3, 1.0, 8.0, 1e4]
DELTAS = [1e-50, 1e-10, 1e-5, 0.1, 0.9]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", RHOS)
def test_tight_is_the_minimum_over_all_orders(rho, delta):
    # The printed form: delta = e^{(a-1)(a rho - eps)} (1 - 1/a)^a / (a - 1).
    b = np.exp(np.linspace(-12, 130, 200_001))
    a = 1 + b
    grid = a * rho + (-math.log(delta) + a * (np.log(b) - np.log1p(b)) - np.log(b)) / b
    expected = max(0.0, grid.min())
    assert rho_to_epsilon(rho, delta) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", RHOS)
def test_the_usual_conversion_is_looser(rho, delta):
    usual = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert rho_to_epsilon(rho, delta) < usual
    assert epsilon_to_rho(usual, delta) > rho


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_inverse_pair_never_exceeds_the_budget(epsilon, delta):
    rho = epsilon_to_rho(epsilon, delta)
    spent = rho_to_epsilon(rho, delta)
    assert spent <= epsilon
    # Where delta alone pays for most of rho, epsilon reacts strongly to rho's rounding.
    more = rho_to_epsilon(rho * (1 + 1e-9), delta)
    assert more > epsilon


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
@pytest.mark.parametrize("rho", RHOS)
def test_claims_cover_renyi_accountant_and_exact_gaussian(rho, delta):
    # The same conversion on a coarse grid of orders can only be larger ...
    accountant = RdpAccountant().compose(ZCDpEvent(rho))
    tight = rho_to_epsilon(rho, delta)
    assert tight <= accountant.get_epsilon(delta) + 1e-12
    # ... and a Gaussian release with that rho spends no more than we claim.
    exact = gaussian_epsilon(1 / math.sqrt(2 * rho), delta, sensitivity=1.0)
    assert exact <= tight * (1 + 1e-9)


def test_monotone():
    rhos = np.geomspace(1e-6, 1e3, 40)
    epsilons = [rho_to_epsilon(float(r), 1e-5) for r in rhos]
    assert np.all(np.diff(epsilons) > 0)
    budgets = [epsilon_to_rho(float(e), 1e-5) for e in rhos]
    assert np.all(np.diff(budgets) > 0)
    by_delta = [rho_to_epsilon(0.1, d) for d in DELTAS]
    assert np.all(np.diff(by_delta) < 0)


def test_limits():
    assert rho_to_epsilon(0.0, 0.0) == 0.0
    assert rho_to_epsilon(0.1, 0.0) == math.inf
    assert rho_to_epsilon(math.inf, 0.1) == math.inf
    assert epsilon_to_rho(math.inf, 0.0) == math.inf
    assert epsilon_to_rho(1.0, 0.0) == 0.0
    assert rho_to_epsilon(1e-30, 0.1) == 0.0
    assert math.isfinite(rho_to_epsilon(1e30, 1e-300))
    assert math.isfinite(epsilon_to_rho(1e-30, 1e-300))


@pytest.mark.parametrize(
    ("first", "delta", "message"),
    [
        *((0.1, bad, "delta must be in") for bad in (-0.1, 1.0, math.nan)),
        *((bad, 1e-5, "(rho|epsilon) must be") for bad in (-1.0, math.nan)),
    ],
)
def test_bad_arguments_are_named(first, delta, message):
    for function in (rho_to_epsilon, epsilon_to_rho):
        with pytest.raises(ValueError, match=message):
            function(first, delta)
    with pytest.raises(ValueError, match="epsilon must be positive, got 0"):
        epsilon_to_rho(0.0, 1e-5)
