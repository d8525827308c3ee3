"""The cost of noise for smooth sensitivities against quadrature, at more settings."""

import pytest

from tests.unit.accounting.test_smooth import MECHANISMS, check_cost


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("t", "s", "sigma"),
    [
        *((0.3, 0.05, 0.5), (0.05, 0.5, 0.5), (0.02, 0.2, 0.3)),
        *((0.2, 0.5, 1.0), (1e-3, 1, 1)),
    ],
)
def test_cost_covers_the_renyi_divergence(mechanism, t, s, sigma):
    check_cost(mechanism, t, s, sigma)
