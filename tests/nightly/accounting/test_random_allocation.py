"""Random allocation beside Poisson batches, and the profile of its event."""

import numpy as np
import pytest

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting, batching
from dpjax.accounting import noise_multiplier, noise_multiplier_to_epsilon
from dpjax.accounting._profiles import overflow_of


@pytest.mark.parametrize("num_bins", [5, 40, 200])
@pytest.mark.parametrize("epochs", [1, 20])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_costs_no_more_than_poisson_batches(num_bins, epochs, epsilon):
    run = {"num_steps": num_bins * epochs, "relation": ADD_OR_REMOVE_ONE}
    bins = noise_multiplier(epsilon, 1e-8, num_bins=num_bins, **run)
    poisson = noise_multiplier(epsilon, 1e-8, sampling_prob=1 / num_bins, **run)
    assert 0.8 * poisson < bins <= 1.005 * poisson


def test_replaced_records_in_an_order_of_256_of_10_000():
    sampling = batching.BallsInBins(39).accounting(10_000, 200)
    assert sampling == {"num_steps": 200, "num_bins": 39}
    multiplier = noise_multiplier(1.0, 1e-5, **sampling)
    without_gain = noise_multiplier(1.0, 1e-5, num_steps=6)
    poisson = noise_multiplier(1.0, 1e-5, num_steps=200, sampling_prob=1 / 39)
    assert poisson < multiplier < 1.04 * poisson < without_gain / 6


@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
def test_profile_of_a_run(relation):
    run = {"num_steps": 33, "num_bins": 10, "relation": relation}
    deltas, event = np.array([1e-4, 1e-6]), accounting.gaussian_event(1.0, **run)
    epsilons = [noise_multiplier_to_epsilon(1.0, d, **run) for d in deltas]
    assert 0 < overflow_of(epsilons[1], 1e-6, event) < 1e-9
    spent = [accounting.delta_of(event, e, relation=relation) for e in epsilons]
    # Both are bounds, of which one has a thousandth of delta for overflow.
    assert (spent >= 0.995 * deltas).all()
    assert (spent <= 1.02 * deltas).all()
