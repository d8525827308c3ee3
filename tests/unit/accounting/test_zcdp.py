"""zCDP conversions: an independent minimisation, inverse pairs, limits."""

import math

import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax.accounting import epsilon_to_rho, gaussian_epsilon, rho_to_epsilon

RHOS = [1e-9, 1e-4, 0.03, 0.5, 3.0, 100.0]
DELTAS = [1e-50, 1e-10, 1e-5, 0.1, 0.9]


@pytest.mark.parametrize("rho", RHOS)
def test_tight_is_the_minimum_over_all_orders(rho):
    b = np.exp(np.linspace(-12, 130, 200_001))
    logs = np.log(b) - np.log1p(b)
    for delta in DELTAS:
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


def test_limits():
    assert rho_to_epsilon(math.inf, 0.1) == math.inf
    assert rho_to_epsilon(1e-30, 0.1) == 0.0
    assert math.isfinite(rho_to_epsilon(1e30, 1e-300))
    assert math.isfinite(epsilon_to_rho(1e-30, 1e-300))
