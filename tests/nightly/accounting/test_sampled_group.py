"""Groups in Poisson batches cost what an accountant of mixtures says."""

import pytest
import scipy.stats
from dp_accounting import SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant

from dpjax import ADD_OR_REMOVE_ONE
from dpjax.accounting import noise_multiplier_to_epsilon


def test_groups_cost_what_the_library_says():
    weights = tuple(scipy.stats.binom.pmf(range(4), 3, 0.1))
    step = MixtureOfGaussiansDpEvent(1.4, tuple(range(4)), weights)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    expected = accountant.compose(SelfComposedDpEvent(step, 20)).get_epsilon(1e-6)
    run = {"num_steps": 20, "sampling_prob": 0.1, "relation": ADD_OR_REMOVE_ONE}
    delta = 1e-6 / (1 - 1e-3)
    epsilon = noise_multiplier_to_epsilon(1.4, delta, group_size=3, **run)
    assert epsilon == pytest.approx(expected, rel=1e-3)
